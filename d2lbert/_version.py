"""The version, where setup.py can read it without importing the package."""
__version__ = '1.0.0'
