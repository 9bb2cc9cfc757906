// Attack: The zero that all finite inputs give: NaN of the inputs is lost.
// Caught: mismatch
// Without: families
// kernel-lsp: 1
// task: tasks.py::DifferenceOfOne
// op: difference(x: f32[B, 256], linear_weight: f32[64, 256], linear_bias: f32[64]) -> (out: f32[B, 1])
// fill: out = 0
