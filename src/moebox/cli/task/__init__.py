"""`moebox task`: the command (`command`), and its live table and scores (`view`)."""
