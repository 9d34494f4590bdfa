"""moebox: the box you have, a frontier mixture-of-experts model, and an endpoint you can trust."""

__version__ = "0.2.0"
