"""Structural decisions, which change the set of kernels: splitting long reductions, and methods of contractions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.products.thread_rows import may_go_by_thread_rows
from kernel_lsp.generate.codegen.rows.row_schedule import SHAREABLE_KINDS
from kernel_lsp.generate.fusion.contractions import operand_type
from kernel_lsp.generate.fusion.graph import live_tensors, scalars_of
from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.index import Index, product
from kernel_lsp.generate.ir.scalar import accesses
from kernel_lsp.generate.ir.tensor import (
    Attention,
    AttentionGradient,
    Definition,
    LogSums,
    Reduction,
    Tensor,
    pattern_of,
)
from kernel_lsp.generate.ir.workload import AMPERE, Workload
from kernel_lsp.generate.library import (
    LIBRARY_FROM_PRODUCTS_OF_16_BITS,
    LibraryPlan,
    attention_plan,
    biased_plan,
    gradient_plans,
    is_matrix,
    kept_attention_plans,
    least_products_of_16_bits,
    library_plan,
    n_products,
    run_along,
    stays_in_registers,
)
from kernel_lsp.generate.lowering.table import LoweredGraph
from kernel_lsp.generate.schedule.contraction_defaults import (
    MAX_SKINNY,
    MAX_SPLIT_PRODUCTS,
    MAX_WARPS,
    MIN_GATHERED_PRODUCTS,
    MIN_SKINNY_TERMS,
    MIN_SPLIT_TERMS,
    MIN_TERMS_OF_REGISTER_TILES,
    converts_bytes,
    fill_by_register_tiles,
    parts_of_register_tiles,
    suits_thread_rows,
)
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.scatter_knobs import pick_gathered
from kernel_lsp.generate.schedule.tensor_core_knobs import MIN_TERMS_OF_PART, PARTS, default_parts, may_go_by_copy
from kernel_lsp.generate.structure.attention_gradient_patterns import GradientFamily, KeptAttention, find_gradients
from kernel_lsp.generate.structure.attention_patterns import find_attention
from kernel_lsp.generate.structure.difference_sums import difference_sum
from kernel_lsp.generate.structure.recomputed_factors import pick_recomputed
from kernel_lsp.generate.structure.rewriter import StructurePlan, by_copy
from kernel_lsp.generate.structure.row_splits import MAX_SPLIT, MIN_SPLIT_COLUMNS, RowSplits
from kernel_lsp.generate.structure.sum_rewrites import find_moments, flat_sum, with_pointwise_inlined
from kernel_lsp.generate.structure.window_gradient_patterns import pick_windows

MAX_DIRECT_TERMS = 64
"""Maximum products of a sum that one thread computes: staging its factors would cost as much."""
MAX_ROW_OUTPUTS = 1 << 15
"""Maximum results of a contraction with a warp per result: tiles would not fill the GPU."""
TENSOR_CORES_FROM_PRODUCTS = 1 << 26
"""Minimum products for tensor cores by default, where the alternative is tiles on CUDA cores and not the library. So
are long sums of few results whose factors do not lie along them: the gradients of a low-rank update, 4096 rows of 1024
to 16 and back in f32, took 391 us on an H200 by threads that share sums, 243 so."""
MIN_FRAGMENT = 16
"""Minimum rows, columns and terms for tensor cores; with fewer, most of a fragment would be empty."""
MIN_SHORT_TERMS, MIN_LINES_OF_SHORT, MIN_SHORT_PRODUCTS = 4, 64, 1 << 24
"""Minimum terms, rows and columns, and products, of products of f32 with few terms for tensor cores by default: a
low-rank update, 8192 rows of 16 by 4096 with a sum and a ReLU, took 1133 us on an H200 by single threads and 92 so;
(2048, 32) x 2048 57 and 16."""
MIN_DIFFERENCES, MIN_PRODUCTS_OF_DIFFERENCES = 8, 1 << 22
"""Minimum terms of a sum over differences, and of all sums, for tiles by default. Distances of 2048 points in 128 dims
took 643 us on an H200 with a warp per pair, torch.compile's product 52; by tiles they were not timed."""
MIN_KEYS = 8
"""Minimum keys of an attention in one kernel: with two, six layers took 589 us for 979 on an H200 by products."""
MIN_REGISTER_TILE = 4
"""Minimum rows and columns of a contraction for tiles in registers."""
MIN_RESULTS_PER_MULTIPROCESSOR = 1024
"""Minimum results of all parts per multiprocessor for a large product by tiles: a tile of 128 x 64 is shared by at most
8 blocks. (256, 524288) x 256 in one part took 4755 us on an H200 so, and 1300 in the library."""
MAX_STORED_SCORES = 1 << 28
"""Maximum scores of a large attention in f32 whose gradients are separate kernels by default. With a causal mask and
scores divided by a root, in f32, 64 heads of 1024 x 64 took 1147 us on an H200 so, 1419 by kernels that recompute
scores; 32 of 2048 x 128 2953 and 5327; in bf16, 803 and 343, and 1892 and 1532."""
MAX_RESULTS_PER_MULTIPROCESSOR = 128 * 64
"""Maximum results per multiprocessor to split sums of products: beyond, tiles of 128 x 64 give work to all."""
LIBRARY_FROM_PRODUCTS = 1 << 30
"""Minimum products for a vendor library by default. In f32 our tensor cores are faster than it, since it keeps to CUDA
cores."""
MAX_REPEATED_TERMS = 4096
"""Maximum terms of a reduction to one value that every block may compute for itself: 16 KB, a few loads per thread."""
MAX_REPEATED_BY_DEFAULT = 1024
"""Maximum terms for which that is the default: with 4096 labels a cross entropy's gradient took 252 us so on an H200,
and 223 with a launch of its own."""
SPLITTABLE = ("sum", "prod", "max", "min", "any", "all")


def plan_structure(lowered: LoweredGraph, choices: Choices, workload: Workload, operation: str) -> StructurePlan:
    """Read the schedule's decisions, or make the default ones."""
    outputs = [output.tensor for output in lowered.outputs]
    live = live_tensors(outputs, {})
    rows = RowSplits(workload, live)
    plan = StructurePlan(windows=pick_windows(lowered.window_gradients, live, choices, workload, operation))
    planner = _Planner(choices, workload, operation, live, frozenset(outputs), rows, plan)
    for tensor in live:
        planner.plan_attention(tensor, outputs)
    for family in find_gradients(live, lowered.attention):
        planner.plan_gradients(family, outputs, lowered.attention)
    fused = plan.fused
    remaining = [tensor for tensor in live_tensors(outputs, fused) if tensor not in fused]
    found = [(tensor, tensor.definition) for tensor in remaining if isinstance(tensor.definition, Reduction)]
    planner.rows.patterns.extend(pattern_of(definition) for _, definition in found if definition.contraction is None)
    planner.rows.patterns.extend(map(pattern_of, rows.rows_of_lines(found)))
    for tensor, definition in found:
        planner.plan_reduction(tensor, definition)
    plan.gathered.extend(pick_gathered(remaining, planner))
    plan.recomputed.extend(pick_recomputed(remaining, planner, plan.contractions))
    return plan


@dataclass
class _Planner:
    """Makes the decisions of one operation, and adds them to its `plan`."""

    choices: Choices
    workload: Workload
    operation: str
    live: Sequence[Tensor]
    outputs: frozenset[Tensor]
    rows: RowSplits
    plan: StructurePlan
    names: NamePool = field(default_factory=NamePool)
    attention_names: NamePool = field(default_factory=NamePool)
    walked: dict[Tensor, int] = field(default_factory=dict)

    def plan_attention(self, tensor: Tensor, outputs: Sequence[Tensor]) -> None:
        """Choose `online`, one kernel with no scores in memory, `library`, or separate kernels. The latter are the
        default where something else needs the scores."""
        found = find_attention(tensor)
        if found is None:
            return
        for log_sums in self.live:
            if isinstance(log_sums.definition, LogSums) and log_sums.definition.result.tensor is tensor:
                self._plan_kept_attention(tensor, found, log_sums)
                return
        library = attention_plan(tensor, found)
        has_few_keys = self._size(found.key.extent) < MIN_KEYS
        default = "products" if has_few_keys else self._default_attention({tensor: found}, outputs)
        if library is not None and default == "online" and self._suits_library(found):
            default = "library"
        chosen = self._pick_attention(tensor.name, default, *(("library",) if library is not None else ()))
        if chosen == "online":
            self.plan.attentions.append((tensor, found))
        elif chosen == "library" and library is not None:
            self.plan.libraries.append((tensor, library))

    def _plan_kept_attention(self, tensor: Tensor, found: Attention, log_sums: Tensor) -> None:
        """Choose how an attention is computed that keeps the logarithms of its sums: its gradients are by the same
        way, which alone has the same scores."""
        assert isinstance(log_sums.definition, LogSums)
        if self._pick_kept(found, has_library=log_sums.definition.has_library) == "library":
            self.plan.libraries += kept_attention_plans(tensor, found, log_sums)
        else:
            self.plan.attentions.append((tensor, found))

    def _pick_kept(self, found: Attention | AttentionGradient, *, has_library: bool) -> str:
        default = "library" if has_library and self._suits_library(found) else "online"
        ways = ("online", *(("library",) if has_library else ()))
        return str(self.choices.pick("log_sums.attention", ways, default, "how it and its gradients are computed"))

    def plan_gradients(self, family: GradientFamily, outputs: Sequence[Tensor], kept: KeptAttention | None) -> None:
        """Choose `online`, kernels that recompute scores, `library`, or separate kernels, for the gradients of an
        attention."""
        if kept is not None and family.statistics is None:
            queries = next(gradient for _, gradient in family.gradients if gradient.kind == "query")
            if self._pick_kept(queries, has_library=kept.has_library) == "library":
                self.plan.libraries += gradient_plans(family.gradients, (kept.out, kept.log_sums))
            else:
                self.plan.gradients.append(family)
            return
        plans = gradient_plans(family.gradients)
        default = self._default_attention(dict(family.gradients), outputs)
        of_queries = [gradient for _, gradient in family.gradients if gradient.kind == "query"]
        if default == "online" and of_queries and self._suits_products(of_queries[0]):
            default = "products"
        if plans and default == "online" and self._suits_library(of_queries[0]):
            default = "library"
        chosen = self._pick_attention(family.gradients[0][0].name, default, *(("library",) if plans else ()))
        if chosen == "online":
            self.plan.gradients.append(family)
        elif chosen == "library":
            self.plan.libraries += plans

    def _n_weighed(self, attention: Attention | AttentionGradient) -> int:
        """Return the number of products of scores and values."""
        return self._size(product(variable.extent for variable in (*attention.variables, attention.key)))

    def _suits_library(self, attention: Attention | AttentionGradient) -> bool:
        """Return True where ATen uses more of the tensor cores' rate than our kernel does."""
        is_large = self._n_weighed(attention) >= LIBRARY_FROM_PRODUCTS_OF_16_BITS
        return attention.value.dtype != DType.F32 and is_large

    def _suits_products(self, attention: AttentionGradient) -> bool:
        """Return True for gradients in f32 whose statistics nothing has kept: kernels that recompute scores multiply
        nine times, and separate ones five times."""
        n_weighed, n_columns = self._n_weighed(attention), self._size(attention.variables[-1].extent)
        fits = LIBRARY_FROM_PRODUCTS <= n_weighed <= MAX_STORED_SCORES * n_columns
        return attention.value.dtype == DType.F32 and fits

    def _pick_attention(self, name: str, default: str, *others: str) -> str:
        knob = f"{self.operation}.{self.attention_names.take(name)}.attention"
        return str(self.choices.pick(knob, ("online", "products", *others), default, "how it is computed"))

    def _default_attention(self, found: Mapping[Tensor, Definition], outputs: Sequence[Tensor]) -> str:
        others = set(live_tensors(outputs, {**self.plan.fused, **found}))
        needed = set(live_tensors(list(found), found))
        scores = [entry for entry in live_tensors(list(found), {}) if entry not in needed]
        return "products" if any(entry in others for entry in scores) else "online"

    def plan_reduction(self, tensor: Tensor, definition: Reduction) -> None:
        name = f"{self.operation}.{self.names.take(tensor.name)}"
        if definition.contraction is not None and self._plan_contraction(tensor, definition, name) != "rows":
            return
        if self._is_flat(tensor, definition, name) or self._is_of_differences(tensor, definition, name):
            return
        if definition.contraction is None and self._is_inlined(tensor, definition, name):
            self.plan.inlined.append(tensor)
            return
        if self._joins_longer_rows(tensor, definition, name):
            self.plan.of_lines.append(tensor)
            return
        joins = self.rows.lets_results_join(tensor, definition)
        if joins and self.choices.pick_int(f"{name}.joined", (0, 1), 1, "results join it"):
            self.plan.joined.append(tensor)
        self._plan_place(tensor, definition, name)
        self._plan_split(tensor, definition, name)

    def _joins_longer_rows(self, tensor: Tensor, definition: Reduction, name: str) -> bool:
        """Return True if a cluster that keeps a longer row on chip also finds the sums of its lines."""
        if tensor in self.outputs or not self.rows.is_of_lines(definition):
            return False
        return bool(self.choices.pick_int(f"{name}.of_lines", (0, 1), 1, "sums of the lines of rows, in their kernel"))

    def _is_flat(self, tensor: Tensor, definition: Reduction, name: str) -> bool:
        """Flatten a sum of weighted sums where another reduction walks over all their terms. The gradient of a group
        norm took 291 us on an H100 apart and 260 so in f32, and 150 and 154 in bf16, which is cheaper to read again
        unless the same kernel finds the sums."""
        found = flat_sum(definition)
        if found is None or pattern_of(found) not in self.rows.patterns:
            return False
        read = {access.tensor for access in accesses(with_pointwise_inlined(definition.body))}
        is_wide = all(access.dtype.itemsize >= 4 for access in accesses(found.body))
        default = int(is_wide or not read.isdisjoint(self.plan.of_lines))
        is_flat = self.choices.pick_int(f"{name}.flat", (0, 1), default, "add up the terms of the sums that it adds up")
        self.plan.rewritten += [(tensor, found)] if is_flat else []
        return bool(is_flat)

    def _is_of_differences(self, tensor: Tensor, definition: Reduction, name: str) -> bool:
        """Choose tiles in shared memory for sums over the differences of rows and columns."""
        found = difference_sum(definition)
        if found is None or found.contraction is None:
            return False
        axes = (found.contraction.row_axes, found.contraction.column_axes)
        fewest = min(self._size(product(tensor.shape[axis] for axis in each)) for each in axes)
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        is_large = self._size(tensor.n_elements) * n_terms >= MIN_PRODUCTS_OF_DIFFERENCES
        default = int(is_large and fewest >= MIN_LINES_OF_SHORT and n_terms >= MIN_DIFFERENCES)
        is_tiled = self.choices.pick_int(f"{name}.tiled", (0, 1), default, "tiles in shared memory, of all pairs")
        self.plan.rewritten += [(tensor, found)] if is_tiled else []
        return bool(is_tiled)

    def _plan_place(self, tensor: Tensor, definition: Reduction, name: str) -> None:
        """Decide between a kernel of its own and a recomputation by every block, which saves a launch, for a small
        reduction to one value."""
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        is_single = all(size.constant == 1 for size in tensor.shape)
        if not is_single or definition.kind not in SPLITTABLE or not 0 < n_terms <= MAX_REPEATED_TERMS:
            return
        choices = ("own_kernel", "every_block")
        default = "every_block" if n_terms <= MAX_REPEATED_BY_DEFAULT else "own_kernel"
        chosen = self.choices.pick(f"{name}.place", choices, default, "who finds a value that all rows need")
        if chosen == "every_block":
            self.plan.everywhere.append(tensor)

    def _plan_contraction(self, tensor: Tensor, definition: Reduction, name: str) -> str:
        """Choose the method of a contraction. `direct`: one thread per result; `rows`: a warp or block per result;
        `tiled`: through shared memory; `split_warps`: as tiled, and the threads of a block share the products of a
        tile; `register_tiles`: the same without shared memory, a small tile in each thread's registers;
        `thread_rows`: all columns of some rows per thread; `tensor_cores`: the same as tiled with `mma.sync`, `by_taps`
        with a copy of the right factor for each tap along a row."""
        options, default = self._contraction_options(tensor, definition), self._default_contraction(tensor, definition)
        chosen = str(self.choices.pick(f"{name}.contraction", options, default, "how it is computed"))
        planned, way = (by_copy(definition), "tensor_cores") if chosen == "by_taps" else (definition, chosen)
        self.plan.contractions += [(tensor, chosen, self._plan_parts(tensor, planned, name, way))]
        if chosen == "library" and (with_bias := self._plan_bias(tensor, definition)) is not None:
            self.plan.libraries.append(with_bias)
        return chosen

    def _plan_bias(self, tensor: Tensor, definition: Reduction) -> tuple[Tensor, LibraryPlan] | None:
        """Return the sum of a product by the library and a bias, with its plan, where nothing else reads the
        product."""
        readers = [reader for reader, read in self._read_by_live if tensor in read]
        if len(readers) != 1 or tensor in self.outputs:
            return None
        plan = biased_plan(readers[0], tensor, definition)
        return None if plan is None else (readers[0], plan)

    def _plan_parts(self, tensor: Tensor, definition: Reduction, name: str, way: str) -> int:
        """Split the sums of a contraction of few results; a second kernel adds up the parts."""
        values = self._parts_offered(tensor, definition) if way in ("tensor_cores", "register_tiles") else [1]
        if len(values) == 1:
            return 1
        default = parts_of_register_tiles(tensor, definition, values, self.workload)
        if way == "tensor_cores":
            default = self._default_parts(tensor, definition, values)
        return self.choices.pick_int(f"{name}.parts", values, default, "parts of each sum that blocks compute")

    def _parts_offered(self, tensor: Tensor, definition: Reduction) -> list[int]:
        """Return the numbers of parts that divide the first summed dim and leave each enough terms."""
        contraction = definition.contraction
        is_few = self._size(tensor.n_elements) < MAX_RESULTS_PER_MULTIPROCESSOR * self.workload.n_multiprocessors
        if contraction is None or contraction.phases is not None or not is_few:
            return [1]
        first = self._size(definition.reduced[0].extent)
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        return [1, *(n for n in PARTS[1:] if first % n == 0 and n_terms >= n * MIN_TERMS_OF_PART)]

    def _default_parts(self, tensor: Tensor, definition: Reduction, values: Sequence[int]) -> int:
        contraction, operand = definition.contraction, self._operand(tensor, definition)
        assert contraction is not None
        assert operand is not None
        rows, columns, batch = (
            self._size(product(tensor.shape[axis] for axis in axes))
            for axes in (contraction.row_axes, contraction.column_axes, contraction.batch_axes)
        )
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        factors, sizes = (contraction.left, contraction.right), (rows, columns, n_terms, batch)
        return default_parts(factors, sizes, operand, self.workload, values)

    def _contraction_options(self, tensor: Tensor, definition: Reduction) -> list[str]:
        has_tensor_cores = self._operand(tensor, definition) is not None
        offered = [("thread_rows", may_go_by_thread_rows(tensor, definition)), ("tensor_cores", has_tensor_cores)]
        by_taps = has_tensor_cores and may_go_by_copy(definition, self.workload)
        offered += [("library", library_plan(tensor, definition) is not None), ("by_taps", by_taps)]
        found = ["direct", "rows", "tiled", "split_warps", "register_tiles"]
        return found + [way for way, is_offered in offered if is_offered]

    def _default_contraction(self, tensor: Tensor, definition: Reduction) -> str:
        contraction = definition.contraction
        assert contraction is not None
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        count = self._size(n_products(definition, tensor.shape))
        plan = library_plan(tensor, definition)
        operand = self._operand(tensor, definition)
        is_narrow = plan is not None and plan.result.dtype.itemsize == 2
        least = least_products_of_16_bits(n_terms) if is_narrow else LIBRARY_FROM_PRODUCTS
        n_results = self._size(tensor.n_elements)
        n_columns = self._size(product(tensor.shape[axis] for axis in contraction.column_axes))
        n_rows = self._size(product(tensor.shape[axis] for axis in contraction.row_axes))
        is_by_thread = min(n_columns, n_rows) <= 2 and n_terms <= MAX_DIRECT_TERMS
        if converts_bytes(tensor, definition, self.workload):
            return "tensor_cores"
        if plan is not None and operand != DType.F32 and count >= least and not is_by_thread:
            return "library"
        if suits_thread_rows(tensor, definition, self.workload):
            return "thread_rows"
        factors = (contraction.left, contraction.right)
        is_skinny = MIN_REGISTER_TILE <= min(n_rows, n_columns) <= MAX_SKINNY and n_terms >= MIN_SKINNY_TERMS
        are_matrices = all(map(is_matrix, factors))
        is_small = count < LIBRARY_FROM_PRODUCTS
        fills_fragments = operand is not None and min(n_rows, n_columns, n_terms) >= (
            MIN_FRAGMENT if contraction.phases is None else MIN_FRAGMENT // 4
        )
        suits_tensor_cores = fills_fragments and count >= TENSOR_CORES_FROM_PRODUCTS
        if are_matrices and suits_tensor_cores and is_small and not run_along(factors, definition.reduced):
            return "tensor_cores"
        if operand == DType.F32 and is_skinny and stays_in_registers(factors, definition, is_small):
            return "register_tiles"
        if fills_fragments and count >= LIBRARY_FROM_PRODUCTS:
            parts = self._default_parts(tensor, definition, self._parts_offered(tensor, definition))
            is_few = n_results * parts < MIN_RESULTS_PER_MULTIPROCESSOR * self.workload.n_multiprocessors
            return "library" if plan is not None and is_few else "tensor_cores"
        is_short = MIN_SHORT_TERMS <= n_terms <= MAX_DIRECT_TERMS and min(n_rows, n_columns) >= MIN_LINES_OF_SHORT
        if operand is not None and is_short and are_matrices and count >= MIN_SHORT_PRODUCTS:
            return "tensor_cores"
        if min(n_columns, n_rows) <= 2:
            return "rows" if n_terms > 4 * MAX_DIRECT_TERMS and n_results <= MAX_ROW_OUTPUTS else "direct"
        is_split = count <= MAX_SPLIT_PRODUCTS and n_terms >= MIN_SPLIT_TERMS and are_matrices
        if is_split and 128 <= n_terms < MIN_TERMS_OF_REGISTER_TILES:
            return "rows" if n_results <= MAX_WARPS * self.workload.n_multiprocessors else "split_warps"
        if n_results <= MAX_ROW_OUTPUTS and n_terms >= 128:
            offered = self._parts_offered(tensor, definition)
            fills = fill_by_register_tiles(tensor, definition, offered, self.workload)
            if min(n_rows, n_columns) >= MIN_REGISTER_TILE and (fills or run_along(factors, definition.reduced)):
                return "register_tiles"
            return "split_warps" if is_split else "rows"
        if is_split:
            return "split_warps"
        if n_terms <= MAX_DIRECT_TERMS and not (suits_tensor_cores and are_matrices and contraction.batch_axes):
            return "direct"
        is_gathered = operand == DType.F32 and fills_fragments and not are_matrices and count >= MIN_GATHERED_PRODUCTS
        return "tensor_cores" if suits_tensor_cores or is_gathered else "tiled"

    def _operand(self, tensor: Tensor, definition: Reduction) -> DType | None:
        """Return the element type of a contraction on this GPU's tensor cores; None where they do not support it."""
        assert definition.contraction is not None
        if self.workload.capability < AMPERE:
            return None
        return operand_type(tensor, definition.contraction, definition.reduced)

    def _plan_split(self, tensor: Tensor, definition: Reduction, name: str) -> None:
        """Split few long rows over blocks; a second kernel combines their results."""
        if definition.kind not in SPLITTABLE or self._plan_lines(tensor, definition, name):
            return
        beside_rows = self.rows.parts_beside_rows(definition)
        usual = self.rows.usual(definition)
        n_columns = self._size(product(variable.extent for variable in definition.reduced))
        if n_columns < MIN_SPLIT_COLUMNS // 4 and not beside_rows:
            return
        is_shared = next(self._sharing(tensor, definition), None) is not None
        default = beside_rows or (1 if is_shared else usual)
        values = sorted({1, max(1, usual // 2), usual, min(MAX_SPLIT, 2 * usual), 8, 64})
        if beside_rows:
            values = sorted({1, *(self.workload.n_multiprocessors * factor for factor in (1, 2, 4, 8))})
        split = self.choices.pick_int(f"{name}.split", values, default, "blocks that share a row")
        if split > 1:
            self.plan.splits.append((tensor, split))

    def _sharing(self, tensor: Tensor, definition: Reduction) -> Iterator[Tensor]:
        """Yield the consumers that read the rows again and belong to the launch of the reduction: blocks share them."""
        if definition.kind not in SHAREABLE_KINDS or pattern_of(definition)[-1:][0][0] != "r":
            return
        yield from (r for r in self._reading_rows(tensor, definition) if not self._awaits_other_rows(r, tensor))

    def _reading_rows(self, tensor: Tensor, definition: Reduction) -> list[Tensor]:
        """Return what depends on the reduction and walks over as many elements as it does."""
        n_elements = self._size(product(variable.extent for variable in definition.domain))
        return [reader for reader in self._readers(tensor) if self._n_walked(reader) == n_elements]

    def _awaits_other_rows(self, reader: Tensor, tensor: Tensor) -> bool:
        """Return True if a reader of a reduction also needs one over rows of another length: not in one launch."""
        others = self._behind[reader] - self._behind[tensor] - {reader}
        patterns = [
            pattern_of(other.definition)
            for other in others
            if isinstance(other.definition, Reduction) and other.definition.contraction is None
        ]
        assert isinstance(tensor.definition, Reduction)
        return any(pattern != pattern_of(tensor.definition) for pattern in patterns)

    def _is_inlined(self, tensor: Tensor, definition: Reduction, name: str) -> bool:
        """Return True if each thread that reads the reduction computes it, by a loop."""
        if not self._can_inline(tensor, definition):
            return False
        return bool(self.choices.pick_int(f"{name}.inlined", (0, 1), 0, "a loop of each thread that reads it"))

    def _can_inline(self, tensor: Tensor, definition: Reduction) -> bool:
        """Return True if a short reduction is read once per row, by a reduction over the rows: one launch computes
        both."""
        n_terms = self._size(product(variable.extent for variable in definition.reduced))
        if tensor in self.outputs or definition.kind not in SHAREABLE_KINDS or not 0 < n_terms <= MAX_DIRECT_TERMS:
            return False
        n_rows = self._size(tensor.n_elements)
        readers = [reader for reader in self._readers(tensor) if not self._is_row_of(reader, definition)]
        stored = [reader for reader in readers if reader in self.outputs or isinstance(reader.definition, Reduction)]
        walked = [self._n_walked(reader) for reader in stored]
        ends = any(isinstance(r.definition, Reduction) and self._n_walked(r) == n_rows for r in stored)
        return n_rows > 1 and ends and max(walked) <= n_rows

    def _is_row_of(self, reader: Tensor, definition: Reduction) -> bool:
        """Return True for a reduction over the same rows that is itself inlined."""
        other = reader.definition
        return (
            isinstance(other, Reduction)
            and reader not in self.outputs
            and [(v.extent, v in other.reduced) for v in other.domain]
            == [(v.extent, v in definition.reduced) for v in definition.domain]
        )

    def _readers(self, tensor: Tensor) -> list[Tensor]:
        """Return the live tensors that depend on it, in the order of definition."""
        found = {tensor}
        for other, read in self._read_by_live:
            if not found.isdisjoint(read):
                found.add(other)
        return [reader for reader in self.live if reader in found and reader is not tensor]

    @cached_property
    def _read_by_live(self) -> Sequence[tuple[Tensor, frozenset[Tensor]]]:
        reads = ((other, accesses(*scalars_of(other.definition))) for other in self.live)
        return [(other, frozenset(access.tensor for access in read)) for other, read in reads]

    @cached_property
    def _behind(self) -> Mapping[Tensor, frozenset[Tensor]]:
        """Return each live tensor with all that it depends on."""
        found: dict[Tensor, frozenset[Tensor]] = {}
        for tensor, read in self._read_by_live:
            found[tensor] = frozenset({tensor}).union(*(found[each] for each in read))
        return found

    def _n_walked(self, tensor: Tensor) -> int:
        """Return the number of elements that a kernel of the tensor loops over."""
        if tensor not in self.walked:
            definition = tensor.definition
            sizes = [v.extent for v in definition.domain] if isinstance(definition, Reduction) else tensor.shape
            self.walked[tensor] = self._size(product(sizes))
        return self.walked[tensor]

    def _plan_lines(self, tensor: Tensor, definition: Reduction, name: str) -> bool:
        """Choose lines of memory as the parts of a reduction: a matrix's rows, for example. Their packs need no mask,
        which parts of any length do. The second sum of a variance has the parts of the first."""
        moments = find_moments(tensor)
        if moments is not None:
            parts = dict(self.plan.splits).get(moments.first)
            self.plan.splits += [(tensor, parts)] if parts is not None else []
            return parts is not None
        n_leading = self.rows.n_leading(definition)
        if not n_leading:
            return False
        sharing, later = self._sharing(tensor, definition), self._reading_rows(tensor, definition)
        default = self.rows.is_better_by_lines(definition, sharing, later)
        if not self.choices.pick_int(f"{name}.by_rows", (0, 1), int(default), "the parts are rows"):
            return False
        self.plan.splits.append((tensor, -n_leading))
        return True

    def _size(self, size: Index) -> int:
        return self.workload.size(size)
