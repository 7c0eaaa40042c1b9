"""Chairlift: a distributed server for language models, continuously batched.

This package only gives the top-level folders one import name: every subpackage is a symbolic
link to the folder of the same name (see ``docs/adr/0001-link-package.md``).
"""

__version__ = "0.1.0"
