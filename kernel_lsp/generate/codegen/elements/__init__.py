"""Elementwise kernels, and scatters. The words of these files, for a result of shape (2, 8):

    | word | what it is | file |
    |---|---|---|
    | element | one result; 0 ... 7 are the first row, 8 ... 15 the second | `elementwise.py` |
    | pack | neighbours in memory that one instruction loads or stores: 0 1 2 3 | `packs.py` |
    | box | neighbours along several axes, which share what they read: 0 1 and below them 8 9 | `boxes.py` |
    | line | a row, 0 ... 7; the block that lies in one divides nothing to find its coordinates | `lines.py` |
    | run | neighbours in memory that the unrolled loops of a thread read, such as a window's row | `runs.py` |

In: an elementwise group and its schedule. Out: one kernel. Never: a vector access that the strides do not allow.
"""
