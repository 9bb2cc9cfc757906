-- Written by scripts/write_editor_files.py from kernel_lsp/config.py. Do not edit.

---@class kernel_lsp.Settings
---@field device? string Device that checks and times candidates: auto, cpu (the PTX executor), cuda, cuda:N, cuda:all, ssh://HOST, ray or ray://HOST:PORT.
---@field targetGpu? string Target GPU of estimates; every estimate names it.
---@field python? string Python interpreter with your torch; default: that of the active environment.
---@field cudaDirectory? string Root of the CUDA toolkit; default: found automatically.
---@field generations? integer Generations of the search.
---@field proposals? integer Candidates proposed per generation.
---@field seed? integer Seed of the search and of the inputs.
---@field captureDeadlineS? number Capture timeout (seconds), for importing and capturing the target.
---@field compileDeadlineS? number Compile timeout (seconds), per compilation.
---@field baselineWaitS? number Baseline timeout (seconds): how long a timing waits for torch.compile's modes; 0 takes those that are ready.
---@field runDeadlineS? number Run time limit (seconds), after which no further candidate starts.
---@field cacheDirectory? string Folder that caches compiled kernels between runs.
---@field models? table Models that propose kernels, e.g. openai/gpt-5, ollama/qwen3, manual, judge=NAME; none: the generator alone.
---@field modelBaseUrl? string Base URL of a server with OpenAI's protocol.
---@field modelPrices? string Price of models without a known price: PROMPT:REPLY, US dollars per million tokens.
---@field budgetUsd? number Maximum cost of a run's models (US dollars), never exceeded.
---@field modelDeadlineS? number Reply timeout (seconds), per reply of a model.
---@field modelIdleDeadlineS? number Idle timeout (seconds) between parts of a model's streamed reply.
---@field manualWaitS? number Manual reply timeout (seconds), for the model `manual`; the run then stops, and can be resumed.
---@field modelMaxTokens? integer Maximum tokens of one reply.
---@field modelConcurrency? integer Maximum concurrent requests to one model.
---@field modelRequestsPerMinute? number Maximum requests to one model per minute.
---@field temperatures? table Sampling temperatures of proposals.
---@field strategy? "evolve"|"best-of-n"|"beam"|"agent" Search strategy of models' proposals; agent: each works in several turns, with tools.
---@field ensemble? "bandit"|"uniform" Selection of models, temperatures and hints.
---@field repairRounds? integer Maximum repairs of a translation by a model.
---@field islands? integer Populations that evolve separately and exchange their best members.
---@field earlyStop? "on"|"off" Stop a search near the speed of light (roofline bound), or when it gains nothing more.
---@field judges? "off"|"filter" Let models filter candidates before they reach the hardware.
---@field judgeThreshold? number Probability of correctness below which a judge votes no.
---@field outDirectory? string Folder of the result files; default: next to the target's file.
---@field logLevel? "debug"|"info"|"warning"|"error" Minimum level of log messages on stderr.
---@field sandbox? "auto"|"off"|"limits"|"landlock"|"landlock+seccomp"|"bwrap" Sandbox of compilers, the executor and workers: auto selects the strongest that this machine supports.
---@field tolerance? "strict"|"torch"|"kernelbench"|"robust-kbench"|"all" Tolerance for kernels with host code of their own: strict, or another benchmark's; all: strict decides, and the verdict under each is shown.
---@field diagnostics? boolean In an editor: show the rules' findings while you type.
---@field codeLens? boolean In an editor: show commands and the last result above each target.
---@field inlayHints? boolean In an editor: show each line's share of the estimated time at its end.
---@field estimateOnHover? boolean In an editor: estimate a target when you hover over it; imports its file, in a trusted workspace.
---@field checkOnSave? boolean In an editor: compile and check a kernel when you save it, in a trusted workspace.
---@field measureOnSave? boolean In an editor: also run and time a kernel on the GPU when you save it, in a trusted workspace.

return {
  names = { "device", "targetGpu", "python", "cudaDirectory", "generations", "proposals", "seed", "captureDeadlineS", "compileDeadlineS", "baselineWaitS", "runDeadlineS", "cacheDirectory", "models", "modelBaseUrl", "modelPrices", "budgetUsd", "modelDeadlineS", "modelIdleDeadlineS", "manualWaitS", "modelMaxTokens", "modelConcurrency", "modelRequestsPerMinute", "temperatures", "strategy", "ensemble", "repairRounds", "islands", "earlyStop", "judges", "judgeThreshold", "outDirectory", "logLevel", "sandbox", "tolerance", "diagnostics", "codeLens", "inlayHints", "estimateOnHover", "checkOnSave", "measureOnSave" },
  gpus = { "H200", "H100 SXM", "H100 PCIe", "A100 40GB", "A100 80GB", "A100 80GB PCIe", "A10", "L4", "L40S", "V100", "T4", "RTX 3090", "RTX 4090", "RTX 5090", "RTX 6000 Ada", "B200" },
}
