"""Lower ATen calls to definitions of tensors. The modules of this package fill one table of rules."""
