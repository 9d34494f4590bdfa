"""The types of moebox as frozen dataclasses, and the tables of moebox/data (`catalogue`)."""
