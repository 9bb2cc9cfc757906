"""Import pyarrow, which Parquet files alone need, or say how to install it."""

from __future__ import annotations

from typing import Any

from kernel_lsp.errors import EnvironmentProblem


def parquet_module() -> Any:
    """Return pyarrow with its Parquet part. Raises EnvironmentProblem where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentProblem(
            "Parquet files need pyarrow, which is not installed", next_step="pip install 'kernel_lsp[parquet]'"
        ) from error
    return pyarrow
