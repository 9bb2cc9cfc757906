"""One pipeline from a candidate to its verdict: plan, build, integrity, check, estimate."""
