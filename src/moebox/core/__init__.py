"""The nouns of moebox: frozen dataclasses that depend on nothing but the standard library.

`catalogue` is the one module here that reads: the tables that ship with the package.
"""
