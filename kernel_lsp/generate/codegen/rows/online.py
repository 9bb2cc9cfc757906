"""Online computation of a pair of dependent reductions in one pass: each thread keeps both running values."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.fusion.row_patterns import Pair


@dataclass(frozen=True)
class OnlinePair:
    """Two running values of a thread, and for moments the number of elements that they cover. Of ``exponentials``,
    `first` is the maximum; of ``moments`` it is the mean, relative to the pair's offset."""

    pair: Pair
    first: str
    second: str
    count: str
    values: str

    @classmethod
    def start(cls, block: Block, pair: Pair, first: str, second: str) -> OnlinePair:
        """Declare the running values, initialized for no elements."""
        is_maximum = pair.kind == "exponentials"
        name = block.declare(first, "float", "-CUDART_INF_F" if is_maximum else "0.0f", is_const=False)
        sum_name = block.declare(second, "float", "0.0f", is_const=False)
        count = "" if is_maximum else block.declare("count", "float", "0.0f", is_const=False)
        return cls(pair, name, sum_name, count, block.names.take("values"))

    def begin_pack(self, block: Block, width: int) -> None:
        """Declare the values of one pack."""
        block.line(f"float {self.values}[{width}];")

    def add(self, block: Block, lane: str, text: str) -> None:
        """Record the value of one lane of the pack."""
        block.line(f"{self.values}[{lane}] = {text};")

    def end_pack(self, block: Block) -> None:
        """Combine the pack with the earlier ones."""
        if self.count:
            block.kernel.use("add_moments")
            block.line(f"add_moments({self.values}, {self.count}, {self.first}, {self.second});")
        else:
            name = "add_quick_exponentials" if block.kernel.uses_intrinsics else "add_exponentials"
            helper = block.kernel.use(name, self.pair.first.tensor.dtype)
            block.line(f"{helper}({self.values}, {self.first}, {self.second});")
