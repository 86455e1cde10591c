"""The version of the distribution; the build reads it from here."""

__version__ = "0.1.0.dev0"
