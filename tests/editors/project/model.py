import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    def __init__(self, dim, dropout=0.0):
        super().__init__()
        self.first = Norm(dim)
        self.second = Norm(dim, eps=1e-5)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.second(torch.relu(self.first(x))))
