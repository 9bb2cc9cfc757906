"""Language models: providers behind one interface, prompts, replies and costs.

In: prompts as files and what fills them, a budget. Out: texts of candidates, judgements, and what each reply cost.
Never: a reply that is executed or believed unread, or a cost above the budget.
"""
