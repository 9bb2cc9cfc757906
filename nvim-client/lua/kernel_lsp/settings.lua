-- Written by scripts/write_editor_files.py from kernel_lsp/config.py. Do not edit.

---@class kernel_lsp.Settings
---@field device? string Where candidates are checked and timed: auto, cpu (the PTX executor), cuda, or cuda:N.
---@field targetGpu? string The GPU that estimates are for; every estimate names it.
---@field python? string The interpreter that has your torch; by default that of the active environment.
---@field cudaDirectory? string Root of the CUDA toolkit to use; by default it is searched for.
---@field generations? integer Generations of the search.
---@field proposals? integer Candidates proposed per generation.
---@field seed? integer Seed of the search and of the inputs.
---@field captureDeadlineS? number Seconds that importing and capturing the target may take.
---@field compileDeadlineS? number Seconds that one compile may take.
---@field caseDeadlineS? number Seconds that one correctness case may take.
---@field baselineWaitS? number Seconds that a timing waits for torch.compile's modes; 0 takes those that are ready.
---@field runDeadlineS? number Seconds after which a run starts no further candidate.
---@field memoryLimitBytes? integer Memory that a worker process may use.
---@field maxCaseInstructions? integer Instructions, counted per thread, that the executor may run for one case.
---@field cacheDirectory? string Where compiled kernels are kept between runs.
---@field models? table Models that propose kernels, e.g. openai/gpt-5, ollama/qwen3, manual, judge=NAME; none: the generator alone.
---@field modelBaseUrl? string Address of a server that speaks OpenAI's protocol.
---@field modelPrices? string PROMPT:REPLY, US dollars per million tokens, for models whose price is not known.
---@field budgetUsd? number US dollars that a run may spend on models; it never spends more.
---@field modelDeadlineS? number Seconds that one reply of a model may take.
---@field modelIdleDeadlineS? number Seconds that a model may say nothing while it replies.
---@field manualWaitS? number Seconds that a run waits for a person's reply (model `manual`); then it stops, and can be resumed.
---@field modelMaxTokens? integer Tokens that one reply may have.
---@field modelConcurrency? integer Requests to one model at a time.
---@field modelRequestsPerMinute? number Requests to one model per minute.
---@field temperatures? table Temperatures that proposals are drawn with.
---@field strategy? "evolve"|"best-of-n"|"beam"|"agent" How models' proposals build on each other; agent: each works in turns, with tools.
---@field ensemble? "bandit"|"uniform" How models, temperatures and hints are drawn.
---@field repairRounds? integer Times that a model may correct a translation.
---@field islands? integer Populations that evolve apart and exchange their best.
---@field earlyStop? "on"|"off" Whether a search ends at the floor, or when it gains nothing more.
---@field judges? "off"|"filter" Whether models judge what may go to the hardware.
---@field judgeThreshold? number Probability of being right below which a judge votes no.
---@field outDirectory? string Where the two result files go; by default beside the target's file.
---@field logLevel? "debug"|"info"|"warning"|"error" What is logged to stderr.
---@field sandbox? "auto"|"off"|"limits"|"landlock"|"landlock+seccomp"|"bwrap" How compilers, the executor and workers are confined: auto takes the strongest that this machine has.
---@field tolerance? "strict"|"torch"|"kernelbench"|"robust-kbench" Tolerance for kernels with host code of their own; the others are those of other benchmarks.
---@field diagnostics? boolean In an editor: show what the rules find while you type.
---@field codeLens? boolean In an editor: show what can be done, and the last result, above each target.
---@field inlayHints? boolean In an editor: show each line's share of the estimated time at its end.
---@field estimateOnHover? boolean In an editor: estimate a target when you hover over it. That imports its file, in a trusted workspace.
---@field checkOnSave? boolean In an editor: compile and check a kernel when you save it, in a trusted workspace.
---@field measureOnSave? boolean In an editor: when you save a kernel, also run and time it on the GPU, in a trusted workspace.

return {
  names = { "device", "targetGpu", "python", "cudaDirectory", "generations", "proposals", "seed", "captureDeadlineS", "compileDeadlineS", "caseDeadlineS", "baselineWaitS", "runDeadlineS", "memoryLimitBytes", "maxCaseInstructions", "cacheDirectory", "models", "modelBaseUrl", "modelPrices", "budgetUsd", "modelDeadlineS", "modelIdleDeadlineS", "manualWaitS", "modelMaxTokens", "modelConcurrency", "modelRequestsPerMinute", "temperatures", "strategy", "ensemble", "repairRounds", "islands", "earlyStop", "judges", "judgeThreshold", "outDirectory", "logLevel", "sandbox", "tolerance", "diagnostics", "codeLens", "inlayHints", "estimateOnHover", "checkOnSave", "measureOnSave" },
  gpus = { "H200", "H100 SXM", "H100 PCIe", "A100 40GB", "A100 80GB", "A100 80GB PCIe", "A10", "L4", "L40S", "V100", "T4", "RTX 3090", "RTX 4090", "RTX 5090", "RTX 6000 Ada", "B200" },
}
