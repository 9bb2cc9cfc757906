"""Its gradients, from the products that the forward saved."""

import torch
from func_forward import DTYPES
from func_forward import Model as _Forward
from torch.nn import functional as F


def backward_fn(grad_output, x, gate_proj, up_proj, down_proj, gate, up):
    columns = x.shape[-1]
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    grad_hidden = grad_output @ down_proj
    grad_up = grad_hidden * silu
    grad_gate = grad_hidden * up * sigmoid * (1 + gate * (1 - sigmoid))
    flat = x.reshape(-1, columns)
    grad_x = grad_gate @ gate_proj + grad_up @ up_proj
    grad_gate_proj = grad_gate.reshape(flat.shape[0], -1).t() @ flat
    grad_up_proj = grad_up.reshape(flat.shape[0], -1).t() @ flat
    grad_down_proj = grad_output.reshape(-1, columns).t() @ (silu * up).reshape(flat.shape[0], -1)
    return grad_x, grad_gate_proj, grad_up_proj, grad_down_proj


class AutogradFunction(torch.autograd.Function):
    backward_fn = backward_fn

    @staticmethod
    def forward(ctx, x, gate_proj, up_proj, down_proj):
        gate, up = F.linear(x, gate_proj), F.linear(x, up_proj)
        ctx.save_for_backward(x, gate_proj, up_proj, down_proj, gate, up)
        return F.linear(F.silu(gate) * up, down_proj)

    @staticmethod
    def backward(ctx, grad_output):
        return AutogradFunction.backward_fn(grad_output, *ctx.saved_tensors)


class Model(_Forward):
    def forward(self, x, fn=AutogradFunction.apply):
        return fn(x, self.gate_proj, self.up_proj, self.down_proj)


def get_inputs(batch_size, seq_len, hidden_size, dtype="float32"):
    return [torch.randn(batch_size, seq_len, hidden_size, dtype=DTYPES[dtype], requires_grad=True)]


input_names = ["x"]
