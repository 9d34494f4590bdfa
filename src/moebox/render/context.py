"""What a template is filled with."""

Context = dict[str, object]  # by the names that the template in data/templates uses
