-- The :LspKernel* commands. Each asks the server, and says why when it cannot.
local M = {}

local function say(message)
  vim.notify("kernel-lsp: " .. message, vim.log.levels.WARN)
end

local function client()
  local clients = require("kernel_lsp").clients()
  if #clients == 0 then
    say("the server does not run here: see :checkhealth kernel_lsp")
  end
  return clients[#clients]
end

--- Ask, and hand the result on.
local function ask(method, params, on_result)
  local server = client()
  if server == nil then
    return
  end
  local function answered(problem, result)
    if problem ~= nil then
      say(problem.message)
    elseif on_result ~= nil then
      on_result(result)
    end
  end
  -- The client's functions became methods in 0.11.
  if vim.fn.has("nvim-0.11") == 1 then
    server:request(method, params, answered, 0)
  else
    server.request(method, params, answered, 0)
  end
end

local function execute(name, argument)
  ask("workspace/executeCommand", { command = "kernelLsp." .. name, arguments = { argument } })
end

local function here()
  return vim.uri_from_bufnr(0)
end

--- The target at the cursor, else the first of the file.
local function with_target(use)
  local line = vim.api.nvim_win_get_cursor(0)[1] - 1
  ask("kernelLsp/targets", { uri = here() }, function(result)
    local chosen
    for _, target in ipairs(result.targets) do
      if chosen == nil or target.line <= line then
        chosen = target
      end
    end
    if chosen == nil then
      say("no PyTorch function or module was found in this file")
    else
      use({ uri = chosen.uri, symbol = chosen.symbol })
    end
  end)
end

local function optimize(name)
  return function(arguments)
    if vim.bo.modified then
      vim.cmd("write") -- the file on disk is what gets optimized
    end
    if arguments.args ~= "" then
      execute(name, { uri = here(), symbol = arguments.args })
    else
      with_target(function(about)
        execute(name, about)
      end)
    end
  end
end

local function on_file(name)
  return function()
    execute(name, { uri = here() })
  end
end

local function on_run(name)
  return function(arguments)
    execute(name, { uri = here(), run = arguments.args ~= "" and arguments.args or "last" })
  end
end

--- The runs where there are any: checks and estimates, which start by themselves, are seldom what is meant.
local function cancellable()
  local jobs = require("kernel_lsp.jobs").list()
  local runs = vim.tbl_filter(function(job)
    return job.kind == "optimize" or job.kind == "resume"
  end, jobs)
  return #runs > 0 and runs or jobs
end

local function cancel()
  local jobs = cancellable()
  if #jobs == 0 then
    say("there is no job to cancel")
  elseif #jobs == 1 then
    execute("cancel", { job = jobs[1].job })
  else
    vim.ui.select(jobs, { prompt = "Cancel", format_item = function(job) return job.title end }, function(job)
      if job ~= nil then
        execute("cancel", { job = job.job })
      end
    end)
  end
end

--- End the search of a run with the kernel that is verified, or offer the result of one that has ended.
local function use_now()
  execute("useNow", vim.empty_dict())
end

local function apply(arguments)
  require("kernel_lsp.review").apply(arguments.bang)
end

--- Run a program with the recorder, in a terminal; by default the file of this buffer.
local function record(arguments)
  if vim.bo.modified then
    vim.cmd("write")
  end
  local file = vim.api.nvim_buf_get_name(0)
  local config = require("kernel_lsp.config")
  local command = { config.program(), "record", "--" }
  if arguments.args ~= "" then
    vim.list_extend(command, arguments.fargs)
  else
    local environment = vim.env.VIRTUAL_ENV
    vim.list_extend(command, { environment and (environment .. "/bin/python") or "python3", file })
  end
  local folder = config.root_of(file)
  vim.cmd("botright new")
  if vim.fn.has("nvim-0.11") == 1 then
    vim.fn.jobstart(command, { cwd = folder, term = true })
  else
    vim.fn.termopen(command, { cwd = folder })
  end
end

--- List the recorded targets in the quickfix window, by what a kernel saves.
local function hot_spots()
  ask("kernelLsp/hotSpots", { uri = here() }, function(result)
    if #result.spots == 0 then
      say(result.problem ~= "" and result.problem or "no run is recorded here: see :LspKernelRecord")
      return
    end
    local items = vim.tbl_map(function(spot)
      local saves = string.format("%.3g %% of a step, saves %s%.3g %%", spot.share * 100,
        (spot.speedup == 0 or spot.kind == "roofline") and "up to " or "", spot.gain * 100)
      return { filename = vim.uri_to_fname(spot.uri), lnum = spot.line + 1, text = spot.symbol .. ": " .. saves }
    end, result.spots)
    vim.fn.setqflist({}, " ", { title = "Hot spots: " .. result.command:gsub("%c", " "), items = items })
    vim.cmd("copen")
  end)
end

--- Show the code of the function at the cursor in a split that follows it.
local function machine_code(form)
  return function(arguments)
    require("kernel_lsp.machine_code").open(form, arguments.args, function(params, on_result)
      ask("kernelLsp/machineCode", params, on_result)
    end)
  end
end

M.commands = {
  Optimize = { optimize("optimize"), "?", "Optimize the target at the cursor, or the one that is named" },
  OptimizeWithBackward = { optimize("optimizeWithBackward"), "?", "The same, with its backward" },
  AddShapes = { optimize("addShapes"), "?", "Infer the shapes that a target lacks, and write them" },
  Cancel = { cancel, 0, "End a job and all its processes" },
  UseNow = { use_now, 0, "Use the kernel that is verified, and end the search for a faster one" },
  Resume = { on_run("resume"), "?", "Go on with a run, by default the newest" },
  Check = { on_file("check"), 0, "Compile and check the kernel in this buffer" },
  Measure = { on_file("measure"), 0, "Check it, and time it on the GPU" },
  Profile = { on_file("profile"), 0, "Count what each of its lines does" },
  Ptx = { machine_code("ptx"), "?", "Show the PTX of the function at the cursor, for an architecture such as sm_90" },
  Sass = { machine_code("sass"), "?", "Show its machine code (SASS)" },
  Record = { record, "*", "Run a program, and note the shapes and times of your functions" },
  HotSpots = { hot_spots, 0, "List the recorded targets by what a kernel saves" },
  Report = { on_run("report"), "?", "Show what a run found, by default the newest" },
  Show = { on_run("showKernel"), "?", "Show the kernel that a run ended with" },
  Apply = { apply, 0, "Make the change that is under review; with ! also where PyTorch is recommended", true },
  Discard = { function() require("kernel_lsp.review").discard() end, 0, "Leave everything as it is" },
}

--- Define them all.
function M.define()
  for name, command in pairs(M.commands) do
    vim.api.nvim_create_user_command("LspKernel" .. name, command[1], {
      nargs = command[2],
      desc = command[3],
      bang = command[4],
    })
  end
end

return M
