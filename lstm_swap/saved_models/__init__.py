"""SavedModel folders: what they hold, their cuDNN nodes, and the same graphs without them.

`lstm_swap.saved_model` is the entry. Everything here needs TensorFlow, which is imported inside functions.
"""
