"""A worker that sees two GPUs made of Python."""

from __future__ import annotations

from fake_worker import serve

if __name__ == "__main__":
    serve(n_devices=2)
