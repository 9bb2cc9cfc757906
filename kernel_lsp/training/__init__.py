"""Learning from verdicts and times: an environment, rollouts, a policy over schedules and a cost model.

In: tasks, schedules and measured times. Out: an order of the generator's schedules, and trajectories for trainers of
language models. numpy alone; nothing here imports torch.
"""
