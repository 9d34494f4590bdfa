"""How far a served model's next-token probabilities are from a reference, on text that it has not learnt."""
