"""Programs that profilers watch: a candidate's launches, or PyTorch's own trace."""
