"""The version, in a file that setup.py reads without importing the package."""
__version__ = '1.0.0'
