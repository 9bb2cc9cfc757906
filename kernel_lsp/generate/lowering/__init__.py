"""ATen calls to definitions of tensors: one table, filled by the modules of this package."""
