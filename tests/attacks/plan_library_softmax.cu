// Attack: Calls PyTorch's own softmax as a library.
// Caught: build_failed crashed rejected
// Defence: contract
// kernel-lsp: 1
// task: tasks.py::softmax
// op: softmax(x: f32[B, N]) -> (out: f32[B, N])
// library: aten::_softmax(x, 1, false) -> (out)

__global__ void k(const float* x) {}
