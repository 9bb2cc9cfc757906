"""Questions about a parsed kernel: loops that cannot end, instruction census, traits, NaN bits, variables' places."""
