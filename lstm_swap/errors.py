"""What can go wrong, as a tree::

    LstmSwapError
      UsageError(ValueError)               arguments that contradict each other (exit code 2)
      UnreadableModelError(ValueError)     not a model, damaged, or a container that is not read
      IneligibleLayerError(ValueError)     strict mode: every refused layer with every reason
      UnsupportedLayerError(ValueError)    a layer that no rule covers stands where a rewrite was demanded
      VerificationError(ArithmeticError)   numbers differ, or cannot be proved; nothing was written
      MissingDependencyError(ImportError)  names the extra to install

A message names the file, the layer path, the field and its value, the reason, and the way out.
"""

from __future__ import annotations


class LstmSwapError(Exception):
    """Base of every error that this package raises on purpose."""


class UsageError(LstmSwapError, ValueError):
    """Arguments that contradict each other or name something unknown."""


class UnreadableModelError(LstmSwapError, ValueError):
    """The input is not a model, is damaged, or is a container that is not read."""


class IneligibleLayerError(LstmSwapError, ValueError):
    """Strict mode: at least one layer cannot take the form that was asked for."""


class UnsupportedLayerError(LstmSwapError, ValueError):
    """A layer cannot be written as asked, and leaving it out would change the numbers."""


class VerificationError(LstmSwapError, ArithmeticError):
    """Old and new numbers differ, or nothing can be proved about them."""


class MissingDependencyError(LstmSwapError, ImportError):
    """A package is needed that is not installed; the message names the extra that brings it."""
