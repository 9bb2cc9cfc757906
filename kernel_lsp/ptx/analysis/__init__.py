"""Static analysis of a parsed kernel: endless loops, instruction census, traits, NaN bits, variable placement."""
