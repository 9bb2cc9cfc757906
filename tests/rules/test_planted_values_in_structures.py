"""Planted defects behind members of structures, pointers to variables, allocations by helpers and untyped pointers,
each beside correct code of the same form."""

from __future__ import annotations

import pytest

from tests.rules.found_codes import cuda_codes as codes

SPREAD = """
struct Taps { int slot[2]; float part; };
struct Spot { int slot; float part; };
struct Span { int first, last, cut; };
__device__ Taps taps_of(const float* pos, int i) {
    Taps t;
    t.part = 0.5f;
    for (int k = 0; k < 2; ++k) t.slot[k] = SLOT;
    return t;
}
__device__ Spot spot_of(const float* pos, int i) { const int k = 0; return {SLOT, pos[i]}; }
__device__ int2 pair_of(const float* pos, int i) { const int k = 0; return make_int2(SLOT, i); }
__device__ void place(Spot* spot, const float* pos, int i) { const int k = 0; spot->part = pos[i]; spot->slot = SLOT; }
__global__ void spread(const float* __restrict__ pos, float* __restrict__ sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i + 1 >= n) return;
    BODY
}
"""
BODIES = {
    "array in a result": "const Taps t = taps_of(pos, i); for (int k = 0; k < 2; ++k) sum[t.slot[k]] += t.part;",
    "assigned result": "Taps t; t = taps_of(pos, i); sum[t.slot[1]] += t.part;",
    "list as a result": "Spot s = spot_of(pos, i); sum[s.slot] += s.part;",
    "vector as a result": "auto p = pair_of(pos, i); sum[p.x] += 1.0f;",
    "pointer to a variable": "Spot s; place(&s, pos, i); sum[s.slot] += s.part;",
    "copied structure": "Spot s; place(&s, pos, i); Spot other = s; sum[other.slot] += 1.0f;",
    "array of the thread": "int at[2]; for (int k = 0; k < 2; ++k) at[k] = SLOT; sum[at[1]] += 1.0f;",
    "list as a structure": "const int k = 0; Spot s = {SLOT, pos[i]}; sum[s.slot] += s.part;",
    "list of a type": "const int k = 0; const auto s = Spot{SLOT, pos[i]}; sum[s.slot] += s.part;",
    "designators": "const int k = 0; Span s = {.first = i, .last = SLOT, .cut = (int)pos[i]}; sum[s.last] += 1.0f;",
    "some designators": "const int k = 0; Span s = {.first = (int)pos[i], .cut = SLOT}; sum[s.cut] += 1.0f;",
    "vector of the thread": "const int k = 0; const int2 s = make_int2((int)pos[i], SLOT); sum[s.y] += 1.0f;",
    "list of the thread": "const int k = 0; const int at[1] = {SLOT}; sum[at[0]] += 1.0f;",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(("slot", "is_found"), [("(int)pos[2 * i + k]", True), ("2 * i + k", False)])
def test_updates_are_judged_by_what_a_structure_holds(body: str, slot: str, is_found: bool) -> None:
    assert ("KL219" in codes(SPREAD.replace("BODY", body).replace("SLOT", slot))) is is_found


LAUNCH = """
#define ME() (blockIdx.x * blockDim.x + threadIdx.x)
constexpr int kCount = 3000;
struct Item { float weight; int next[3]; };
template <typename T> T* device_array(size_t n) {
    T* made = nullptr;
    return cudaMalloc(&made, n * sizeof(T)) == cudaSuccess ? made : nullptr;
}
cudaError_t reserve(Item** to, int n) { return cudaMalloc(to, n * sizeof(Item)); }
template <typename T> class Array {
    T* items_ = nullptr;
    size_t n_;
public:
    explicit Array(size_t n) : n_(n) { cudaMalloc(&items_, NUMBER * sizeof(T)); }
    T* items() const { return items_; }
};
__global__ void age(Item* __restrict__ items) { const unsigned at = ME(); items[at].weight *= 0.5f; }
__global__ void total(const Item* __restrict__ items, float* __restrict__ sum) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(sum, items[i].weight);
}
__global__ void half_as_many(const Item* __restrict__ pairs, float* __restrict__ w) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    w[i] = pairs[i / 2].weight;
}
cudaError_t run(float* w) {
    BODY
    return cudaGetLastError();
}
"""
GIVEN = {
    "structures": "Item* a; cudaMalloc(&a, sizeof(Item) * kCount); age<<<BLOCKS, 256>>>(a);",
    "result of a helper": "Item* a = device_array<Item>(kCount); age<<<BLOCKS, 256>>>(a);",
    "helper that sets": "Item* a = nullptr; reserve(&a, kCount); age<<<BLOCKS, 256>>>(a);",
    "class of the file": "Array<Item> a(kCount); age<<<BLOCKS, 256>>>(a.items());",
    "thrust": "thrust::device_vector<Item> a(kCount); age<<<BLOCKS, 256>>>(thrust::raw_pointer_cast(a.data()));",
}


@pytest.mark.parametrize("body", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize(("blocks", "is_found"), [("(kCount + 255) / 256", True), ("kCount / 300", False)])
def test_threads_are_compared_with_elements(body: str, blocks: str, is_found: bool) -> None:
    for number in ("n", "n_"):
        text = LAUNCH.replace("BODY", body).replace("BLOCKS", blocks).replace("NUMBER", number)
        assert ("KL256" in codes(text)) is is_found


def test_a_class_may_allocate_more_elements() -> None:
    text = LAUNCH.replace("BODY", GIVEN["class of the file"]).replace("BLOCKS", "(kCount + 255) / 256")
    assert "KL256" not in codes(text.replace("NUMBER", "(n + 255) / 256 * 256"))


@pytest.mark.parametrize(
    "body",
    [
        "Item* a; float* s; cudaMalloc(&a, 1024 * sizeof(Item)); cudaMalloc(&s, 4); total<<<4, 256>>>(a, s);",
        "Item* a; cudaMalloc(&a, 512 * sizeof(Item)); half_as_many<<<4, 256>>>(a, w);",
    ],
    ids=["one sum", "half as many"],
)
def test_arrays_at_other_indices_may_be_smaller(body: str) -> None:
    assert "KL256" not in codes(LAUNCH.replace("BODY", body))


TENSOR = """
#define NEEDS_GPU(x) TORCH_CHECK((x).is_cuda() && (x).is_contiguous(), #x)
#define NEEDS_F32(x) TORCH_CHECK((x).scalar_type() == at::kFloat, #x)
template <typename T> T* bare(const at::Tensor& t) { return static_cast<T*>(t.data_ptr()); }
template <typename T> T* held(const at::Tensor& t) {
    TORCH_CHECK(t.scalar_type() == c10::CppTypeToScalarType<T>::value, "dtype");
    return static_cast<T*>(t.data_ptr());
}
at::Tensor ramp(const at::Tensor& x, double step) {
    NEEDS_GPU(x);
    TORCH_CHECK(step > 0, "step must be positive");
    CHECK
    auto out = MADE;
    ramp_rows<<<x.size(0), 128, 0, at::cuda::getCurrentCUDAStream()>>>(POINTER, out.data_ptr<float>(), step);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""
LIKE, LIKE_PARTS = (
    "at::empty({4}, x.options())",
    "at::empty({4}, at::TensorOptions().dtype(x.dtype()).device(x.device()))",
)


@pytest.mark.parametrize(
    ("check", "made", "pointer", "is_found"),
    [
        ("", LIKE, "static_cast<const float*>(x.data_ptr())", True),
        ("", LIKE_PARTS, "(float*)x.const_data_ptr()", True),
        ("const void* raw = x.data_ptr();", LIKE, "reinterpret_cast<const float*>(raw)", True),
        ("", LIKE, "bare<const float>(x)", True),
        ("", LIKE, "held<const float>(x)", False),
        ("", LIKE, "x.data_ptr<float>()", False),
        ("NEEDS_F32(x);", LIKE, "(float*)x.data_ptr()", False),
        ('TORCH_CHECK(x.options().dtype() == at::kFloat, "f32");', LIKE, "(float*)x.data_ptr()", False),
        ("const void* raw = x.data_ptr();", LIKE, "reinterpret_cast<const Row*>(raw)", False),
    ],
)
def test_options_of_a_result_check_no_dtype(check: str, made: str, pointer: str, is_found: bool) -> None:
    text = TENSOR.replace("CHECK\n", f"{check}\n").replace("MADE", made).replace("POINTER", pointer)
    found = codes(text)
    assert ("KL264" in found) is is_found
    assert not found & {"KL261", "KL266"}


COPIES = """
struct Graph {
    int n_nodes = 0;
    int* first = nullptr;
    int* next = nullptr;
    explicit Graph(const std::vector<int>& from, int n) : n_nodes(n) {
        ALLOCATE
        COPY
    }
};
"""


@pytest.mark.parametrize(
    ("allocate", "copy", "is_found"),
    [
        ("n_nodes * sizeof(int)", "(n_nodes + 1) * sizeof(int)", True),
        ("sizeof(int) * from.size()", "sizeof(int) * (1 + from.size())", True),
        ("(n - 1) * sizeof(int)", "n * sizeof(int)", True),
        ("n * sizeof(int)", "(n + 2) * sizeof(int)", True),
        ("(n_nodes + 1) * sizeof(int)", "(n_nodes + 1) * sizeof(int)", False),
        ("(n_nodes + 1) * sizeof(int)", "n_nodes * sizeof(int)", False),
        ("(n_nodes + 1) * sizeof(int)", "(n_nodes - 1) * sizeof(int)", False),
        ("from.size() * sizeof(int)", "(n + 1) * sizeof(int)", False),
        ("(n + 1) * (from.size() + 1) * sizeof(int)", "(from.size() + 2) * (n + 1) * sizeof(int)", True),
        ("n * (from.size() + 1) * sizeof(int)", "(n + 2) * from.size() * sizeof(int)", False),
    ],
)
def test_copies_of_one_more_element_are_beyond(allocate: str, copy: str, is_found: bool) -> None:
    head = "cudaMalloc(&first, SIZE); cudaMemcpy(first, from.data(), ".replace("SIZE", allocate)
    text = COPIES.replace("ALLOCATE", head.partition("; ")[0] + ";")
    text = text.replace("COPY", f"{head.partition('; ')[2]}{copy}, cudaMemcpyHostToDevice);")
    assert ("KL254" in codes(text)) is is_found


def test_a_member_that_changes_in_between_is_no_size() -> None:
    allocate = "cudaMalloc(&first, n_nodes * sizeof(int)); n_nodes = n - 2;"
    copy = "cudaMemcpy(first, from.data(), (n_nodes + 1) * sizeof(int), cudaMemcpyHostToDevice);"
    assert "KL254" not in codes(COPIES.replace("ALLOCATE", allocate).replace("COPY", copy))


PARTS = """
int stream_parts(int n, int part) {
    float *a, *b;
    MAKE
    cudaMalloc((void**)&b, n * sizeof(float));
    for (int at = 0; at < n; at += part) {
        cudaMemcpyAsync(TO, FROM, part * sizeof(float), KIND);
    }
    return cudaDeviceSynchronize();
}
"""
PINNED, UNIFIED = "cudaMallocHost((void**)&a, n * sizeof(float));", "cudaMallocManaged(&a, n * sizeof(float));"
UP, DOWN = "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"


@pytest.mark.parametrize(
    ("make", "to", "source", "kind", "is_found"),
    [
        (PINNED, "a + at", "b + at", UP, True),
        (PINNED, "&b[at]", "&a[at]", DOWN, True),
        (PINNED, "(char*)(b + at)", "a + at", DOWN, True),
        ("a = new float[n];", "at + a", "b + (at - 1)", UP, True),
        (PINNED, "a + at", "b + at", DOWN, False),
        (PINNED, "&b[at]", "&a[at]", UP, False),
        (UNIFIED, "b + at", "a + at", UP, False),
        (UNIFIED, "a + at", "b + at", DOWN, False),
    ],
)
def test_parts_of_arrays_are_on_their_sides(make: str, to: str, source: str, kind: str, is_found: bool) -> None:
    text = PARTS.replace("MAKE", make).replace("TO,", f"{to},").replace("FROM", source).replace("KIND", kind)
    assert ("KL255" in codes(text)) is is_found


SEGMENTS = """
struct Part { int begin, end; };
__device__ Part part_of(const int* first, int i) { return {first[i], first[i + 1]}; }
__device__ void bounds_of(const int* first, int i, int* a, int* b) { *a = first[i]; *b = first[i + 1]; }
__global__ void scale_rows(const int* __restrict__ first, const int2* __restrict__ pairs, float* v, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    BODY
}
"""


@pytest.mark.parametrize(
    "body",
    [
        "for (int k = first[i]; k < first[i + 1]; ++k) v[k] *= 0.5f;",
        "const Part p = part_of(first, i); for (int k = p.begin; k < p.end; ++k) v[k] *= 0.5f;",
        "int a, b; bounds_of(first, i, &a, &b); for (int k = a; k < b; ++k) v[k] *= 0.5f;",
        "const int2 p = pairs[i]; for (int k = p.x; k < p.y; ++k) v[k] += 1.0f;",
    ],
)
def test_segments_between_two_loads_belong_to_one_thread(body: str) -> None:
    assert "KL219" not in codes(SEGMENTS.replace("BODY", body))


@pytest.mark.parametrize(
    "body",
    [
        "for (int k = first[i]; k < n; k += 64) v[k] *= 0.5f;",
        "const Part p = part_of(first, i); v[p.begin] += 1.0f;",
        "const int2 p = pairs[i]; for (int k = p.x; k < n; ++k) v[k] += 1.0f;",
    ],
)
def test_places_without_an_end_may_be_shared(body: str) -> None:
    assert "KL219" in codes(SEGMENTS.replace("BODY", body))
