"""Defects that were planted by an author who had not seen the rules, each beside code that is correct."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import pytorch
from tests.rules.found_codes import cuda_codes

VIEW = """struct View { float* x; int n; };
__global__ void scale(View v, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) v.x[i] *= 2.0f;
}
"""


def pytorch_codes(text: str) -> set[str]:
    return {finding.code for finding in pytorch.check("import torch\n" + text)}


@pytest.mark.parametrize(
    ("setup", "is_found"),
    [
        ("    View v;\n    v.x = const_cast<float*>(host.data());\n", True),
        ("    View v{host.data(), n};\n", True),
        ("    View v;\n    v.x = device;\n", False),
        ("    View v;\n    v.x = host.data();\n    v.x = device;\n", False),
    ],
)
def test_a_host_pointer_within_a_structure_is_found_at_the_launch(setup: str, is_found: bool) -> None:
    run = f"void run(std::vector<float>& host, float* device, int n) {{\n{setup}"
    launch = "    scale<<<(n + 255) / 256, 256>>>(v, n);\n"
    assert ("KL258" in cuda_codes(f"{VIEW}{run}{launch}    CHECK(cudaGetLastError());\n}}\n")) is is_found


@pytest.mark.parametrize(
    ("guard", "index", "is_found"),
    [
        ("row < rows && col < cols", "row * cols + col", False),
        ("row < rows && col < cols", "row * rows + col", True),
        ("row < cols && col < rows", "row * cols + col", True),
        ("row < rows && col < cols", "col * rows + row", False),
    ],
)
def test_a_row_has_as_many_elements_as_columns_are_checked(guard: str, index: str, is_found: bool) -> None:
    head = "__global__ void k(float* __restrict__ x, int rows, int cols) {\n"
    coordinates = "".join(
        f"    int {name} = blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis};\n"
        for name, axis in (("col", "x"), ("row", "y"))
    )
    text = f"{head}{coordinates}    if ({guard}) x[{index}] = 0.0f;\n}}\n"
    assert ("KL201" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("wait", "is_found"), [("", True), ("    cudaDeviceSynchronize();\n", False), ("    SYNC();\n", False)]
)
def test_a_clock_is_read_after_a_wait(wait: str, is_found: bool) -> None:
    begin, end = (f"    auto {name} = std::chrono::steady_clock::now();\n" for name in ("t0", "t1"))
    text = f"double run(float* x) {{\n{begin}    k<<<1, 256>>>(x);\n{wait}{end}    return seconds(t1 - t0);\n}}\n"
    assert ("KL276" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(("value", "is_found"), [("INT_MAX", True), ("1", True), ("0x3f", False), ("-1", False)])
def test_a_byte_is_no_value_of_an_integer(value: str, is_found: bool) -> None:
    text = f"cudaError_t run(int* x, int n) {{ return cudaMemset(x, {value}, n * sizeof(int)); }}\n"
    assert ("KL254" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("if (i < n && x[i] > 0.0f) *count += 1;", True),
        ("if (i < n && x[i] > 0.0f) atomicAdd(count, 1);", False),
        ("if (i < n && x[i] > 0.0f) *count = 1;", False),
    ],
)
def test_a_counter_that_data_chooses_is_racy(body: str, is_found: bool) -> None:
    head = "__global__ void k(const float* __restrict__ x, int* __restrict__ count, int n) {\n"
    text = f"{head}    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {body}\n}}\n"
    assert ("KL219" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(("flag", "is_found"), [("cudaStreamNonBlocking", True), ("cudaStreamDefault", False)])
def test_the_default_stream_does_not_wait_for_a_non_blocking_one(flag: str, is_found: bool) -> None:
    text = (
        "void run(float* x, const float* host) {\n    cudaStream_t s;\n"
        f"    CHECK(cudaStreamCreateWithFlags(&s, {flag}));\n"
        "    CHECK(cudaMemcpyAsync(x, host, 1024, cudaMemcpyHostToDevice, s));\n    k<<<1, 256>>>(x);\n"
        "    CHECK(cudaGetLastError());\n}\n"
    )
    assert ("KL270" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(("index", "is_found"), [("T + 1", False), ("T + 2", True)])
def test_an_index_is_compared_with_an_extent_of_the_same_template_parameter(index: str, is_found: bool) -> None:
    text = (
        "template <int T>\n__global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {\n"
        f"    __shared__ float s[T + 2];\n    if (threadIdx.x == 0) s[{index}] = x[n];\n"
        "    __syncthreads();\n    y[threadIdx.x] = s[threadIdx.x];\n}\n"
    )
    assert ("KL218" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("made", "is_found"), [("torch::empty(x.sizes())", True), ("torch::empty(x.sizes(), x.options())", False)]
)
def test_a_result_is_made_where_the_input_is(made: str, is_found: bool) -> None:
    check = '    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.scalar_type() == at::kFloat, "x");\n'
    launch = "    k<<<1, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>());\n"
    head, end = (
        f"torch::Tensor f(torch::Tensor x) {{\n{check}",
        "    C10_CUDA_KERNEL_LAUNCH_CHECK();\n    return y;\n}\n",
    )
    assert ("KL266" in cuda_codes(f"{head}    auto y = {made};\n{launch}{end}")) is is_found


@pytest.mark.parametrize(
    ("place", "is_found"), [("before", True), ("inside", False), ("by a helper", False), ("nowhere", True)]
)
def test_gradients_are_reset_in_the_loop_that_steps(place: str, is_found: bool) -> None:
    reset = "optimizer.zero_grad()\n"
    text = (
        f"def clear(optimizer):\n    {reset}\ndef fit(model, batches, optimizer):\n"
        + (f"    {reset}" if place == "before" else "")
        + "    for x in batches:\n        model(x).mean().backward()\n        optimizer.step()\n"
        + {"inside": f"        {reset}", "by a helper": "        clear(optimizer)\n"}.get(place, "")
    )
    assert ("KL172" in pytorch_codes(text)) is is_found


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("    for x in batches:\n        out = model(x)\n        log(**scalars(loss=out.mean()))\n", "KL105"),
        ("    for x in batches:\n        kept.append(pair(model(x))[1].cpu())\n", "KL105"),
        ("    for p in model.parameters():\n        total = total + p.grad.norm(2) ** 2\n", "KL162"),
    ],
)
def test_what_a_loop_reads_back_by_way_of_a_function_or_a_tuple_is_found(body: str, code: str) -> None:
    helpers = (
        "def scalars(**values):\n    return {name: v.detach().item() for name, v in values.items()}\n"
        "def pair(x):\n    return x.amax(-1), x.argmax(-1)\n"
    )
    assert code in pytorch_codes(f"{helpers}def run(model, batches, kept, total, log):\n{body}")


@pytest.mark.parametrize(
    "text",
    [
        "@torch.no_grad()\ndef gae(delta, decay):\n    out = torch.empty_like(delta)\n"
        "    carry = torch.zeros_like(delta[0])\n"
        "    for t in range(delta.shape[0] - 1, -1, -1):\n        carry = delta[t] + decay * carry\n"
        "        out[t] = carry\n    return out\n",
        "@torch.inference_mode()\ndef generate(model, prompt: torch.Tensor, n: int):\n    b, t = prompt.shape\n"
        "    out = torch.empty((b, t + n), device=prompt.device)\n"
        "    for i in range(t, t + n):\n        out[:, i] = model(out[:, :i])\n    return out\n",
    ],
)
def test_loops_that_are_sequential_by_their_nature_are_silent(text: str) -> None:
    assert pytorch_codes(text) == set()


@pytest.mark.parametrize("made", ["Buffer v{host.data(), n}", "Buffer v(host.data(), n)"])
@pytest.mark.parametrize("definition", ["", "struct Buffer { Buffer(const float* from, int n); View view; };\n"])
def test_a_constructor_may_copy_what_it_is_given_to_the_gpu(definition: str, made: str) -> None:
    run = f"void run(std::vector<float>& host, int n) {{\n    {made};\n    scale<<<(n + 255) / 256, 256>>>(v, n);\n"
    assert "KL258" not in cuda_codes(f"{VIEW}{definition}{run}    CHECK(cudaGetLastError());\n}}\n")


@pytest.mark.parametrize(
    "wait",
    ["while (cudaEventQuery(end) == cudaErrorNotReady) {}", "thrust::copy(d.begin(), d.end(), h.begin());"],
)
def test_a_time_after_a_loop_that_asks_or_an_algorithm_that_waits_is_right(wait: str) -> None:
    kernel = "__global__ void one(float* x) { x[threadIdx.x] = 1.0f; }\n"
    events = (
        f"    one<<<1, 256>>>(x);\n    cudaEventRecord(end);\n    {wait}\n    cudaEventElapsedTime(ms, begin, end);\n"
    )
    clocks = f"    auto t0 = clock();\n    one<<<1, 256>>>(x);\n    {wait}\n    auto t1 = clock();\n"
    for body in (events, clocks):
        text = f"{kernel}void run(float* x, cudaEvent_t begin, cudaEvent_t end, float* ms) {{\n{body}}}\n"
        assert "KL276" not in cuda_codes(text)
        assert "KL276" in cuda_codes(text.replace(wait, "thrust::raw_pointer_cast(d.data());"))


@pytest.mark.parametrize(
    ("guard", "is_found"),
    [
        ("threadIdx.x < cols / 4", True),
        ("cols % 4 == 0", False),
        ("(cols & 3) == 0", False),
        ("reinterpret_cast<uintptr_t>(row) % 16 == 0", False),
    ],
)
def test_vectors_of_rows_that_the_kernel_asks_about_are_right(guard: str, is_found: bool) -> None:
    text = f"""__global__ void copy(const float* __restrict__ x, float4* __restrict__ out, int cols) {{
    const float* row = x + blockIdx.x * cols;
    if ({guard}) out[threadIdx.x] = reinterpret_cast<const float4*>(row)[threadIdx.x];
}}
void run(const float* x, float4* out) {{ copy<<<8, 256>>>(x, out, 1002); }}
"""
    assert ("KL277" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(
    ("one", "two", "is_found"),
    [
        ("x, n", "y, n", False),
        ("x, 256", "y, 256", False),
        ("x, alpha", "y, alpha", False),
        ("x, N", "y, N", False),
        ("x, config.n", "y, config.n", False),
        ("x, all.size()", "y, all.size()", False),
        ("x, n", "x, n", True),
        ("both[0], n", "both[0], n", True),
    ],
)
@pytest.mark.parametrize("stream", ["<<<1, 256>>>", "<<<1, 256, 0, copies>>>"])
def test_kernels_of_two_streams_may_share_numbers(stream: str, one: str, two: str, is_found: bool) -> None:
    text = f"""constexpr int N = 256;
void run(float* x, float* y, float** both, const float* host, int n, float alpha, Config config, Vector& all) {{
    cudaStream_t copies, work;
    cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking);
    cudaMemcpyAsync(z, host, 1024, cudaMemcpyHostToDevice, copies);
    one{stream}({one});
    one<<<1, 256, 0, work>>>({two});
}}
"""
    assert ("KL270" in cuda_codes(text)) is is_found


@pytest.mark.parametrize(("place", "is_found"), [("before", True), ("inside", False)])
def test_an_optimizer_of_each_iteration_steps_once_and_needs_no_reset(place: str, is_found: bool) -> None:
    made = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    before, inside = (made, "pass") if place == "before" else ("pass", made)
    text = f"""def train(model, batches):
    {before}
    for x in batches:
        {inside}
        model(x).mean().backward()
        optimizer.step()
"""
    assert ("KL172" in pytorch_codes(text)) is is_found


OWNERS = """
__global__ void halve(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 0.5f; }
template <typename T> class OnGpu {
 public:
  explicit OnGpu(size_t n) : n_(n) { CHECK(cudaMalloc(&at_, n * sizeof(T))); }
  T* raw() const { return at_; }
  size_t bytes() const { return n_ * sizeof(T); }
 private:
  T* at_ = nullptr;
  size_t n_;
};
struct Locked {
  float* raw() const { return this->at_; }
  void make(size_t n) { CHECK(cudaMallocHost(&at_, n * sizeof(float))); }
  float* at_;
};
struct Shared {
  float* raw() const { return both_; }
  void make(size_t n) { CHECK(cudaMallocManaged(&both_, n * sizeof(float))); }
  float* both_;
};
struct Layer { std::vector<float> weights; std::vector<float, Managed<float>> seen; OnGpu<float> copy; };
struct Net { Layer first; std::vector<Layer> rest; void step(); };
"""


BETWEEN = "void f(OnGpu<float>& a, Locked* b) { CHECK(cudaMemcpy(a.raw(), b->raw(), 9, HOLE)); }"
OF_BOTH = "void f(OnGpu<float>& a, HOLE& b) { CHECK(cudaMemcpy(a.raw(), b.raw(), 9, cudaMemcpyDeviceToDevice)); }"
UP = "void up(Layer& l) { CHECK(cudaMemcpy(l.copy.raw(), l.weights.data(), 9, HOLE)); }"
DOWN = "void down(Layer& l, float* y) { CHECK(cudaMemcpy(y, l.copy.raw(), 9, HOLE)); }"
IN_LOOP = "void run(Net& n) { for (auto& l : n.rest) halve<<<1, 32>>>(l.HOLE, 9); }"
IN_MEMBER = "void run(Net& n) { halve<<<1, 32>>>(n.first.HOLE, 9); }"
IN_METHOD = "void Net::step() { halve<<<1, 32>>>(this->first.HOLE, 9); }"


@pytest.mark.parametrize(
    ("code", "run", "defect", "correct"),
    [
        ("KL255", UP, "cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice"),
        ("KL255", DOWN, "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"),
        ("KL255", BETWEEN, "cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice"),
        ("KL255", OF_BOTH, "Locked", "Shared"),
        ("KL258", IN_MEMBER, "weights.data()", "copy.raw()"),
        ("KL258", IN_MEMBER, "weights.data()", "seen.data()"),
        ("KL258", IN_LOOP, "weights.data()", "copy.raw()"),
        ("KL258", IN_METHOD, "weights.data()", "copy.raw()"),
    ],
)
def test_memory_is_where_its_owner_allocates_it(code: str, run: str, defect: str, correct: str) -> None:
    assert code in cuda_codes(OWNERS + run.replace("HOLE", defect))
    assert code not in cuda_codes(OWNERS + run.replace("HOLE", correct))
