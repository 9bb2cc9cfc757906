-- A new user's journeys in a project without shapes. $PART is the one to play.
local steps = dofile(vim.env.STEPS)
local seen, until_holds, text_of = steps.seen, steps.until_holds, steps.text_of
local parts = {}
local folder = vim.fn.getcwd()

--- What the user chooses in each prompt, by the start of its title.
local wanted = {}
seen.prompts, seen.offered = {}, {}

local function choose(prompt, titles)
  table.insert(seen.prompts, prompt)
  vim.list_extend(seen.offered, titles)
  for index, title in ipairs(titles) do
    for _, start in ipairs(wanted) do
      if vim.startswith(title, start) then
        return index
      end
    end
  end
end

vim.ui.select = function(items, options, on_choice)
  local index = choose(options.prompt or "", vim.tbl_map(options.format_item or tostring, items))
  on_choice(items[index or 0], index)
end

-- Prompts of servers come this way in Neovim 0.7.
vim.fn.inputlist = function(lines)
  local titles = vim.tbl_map(function(line)
    return (line:gsub("^%d+%. ", ""))
  end, vim.list_slice(lines, 3))
  return choose(lines[1], titles) or 0
end

local function act(pattern, title)
  vim.fn.cursor(1, 1)
  vim.fn.search(pattern, "W")
  wanted = { title }
  vim.lsp.buf.code_action()
end

local function has_finding(pattern)
  return function()
    for _, each in ipairs(vim.diagnostic.get(0)) do
      if ((each.source or "") .. " " .. each.message):find(pattern) ~= nil then
        return true
      end
    end
    return false
  end
end

--- From the first click to the used operator.
function parts.first()
  steps.edit("model.py", "python")
  vim.fn.search("class Standardize")
  wanted = { "Use these and optimize" }
  vim.cmd("LspKernelOptimize")
  seen.label = steps.review().label
  vim.cmd("LspKernelApply!")
  vim.cmd("edit model.py")
  until_holds("the operator in the model", function()
    if text_of("model.py"):find("use_standardize", 1, true) == nil then
      act("self.before = Standardize", "Use the optimized operator in 2 calls")
      vim.wait(1000, function()
        return vim.bo.modified
      end, 50)
      vim.cmd("silent update")
    end
    return text_of("model.py"):find("use_standardize(Standardize(features, eps=1e-3))", 1, true) ~= nil
  end)
end

--- A recorded run, and the first of its hot spots.
function parts.record()
  steps.edit("train.py", "python")
  vim.cmd("LspKernelRecord")
  until_holds("a recording", function()
    return text_of(".kernel-lsp/recorded.json"):find("model.py::GatedBlock", 1, true) ~= nil
  end)
  vim.cmd("wincmd p")
  vim.cmd("LspKernelHotSpots")
  until_holds("hot spots", function()
    return #vim.fn.getqflist() > 0
  end)
  seen.spots = vim.tbl_map(function(item)
    return item.text
  end, vim.fn.getqflist())
  vim.cmd("cfirst")
  vim.cmd("set filetype=python")
  vim.cmd("LspKernelOptimize")
  seen.label = steps.review().label
end

--- Neovim is closed while a run goes on.
function parts.leave()
  steps.edit("model.py", "python")
  vim.cmd("LspKernelOptimize GatedBlock")
  until_holds("a run of which something is kept", function()
    local run = steps.runs()[1]
    return run ~= nil and (run.percentage or 0) > 5
  end)
end

--- And opened again.
function parts.come_back()
  wanted = { "Resume" }
  steps.edit("model.py", "python")
  seen.label = steps.review().label
end

function parts.cuda()
  steps.edit("plain.cu", "cuda")
  until_holds("a finding", has_finding("missing bounds check"))
  vim.fn.search("out\\[at\\]")
  vim.cmd("s/;//")
  vim.cmd("silent write")
  until_holds("the compiler's error", has_finding('expected a ";"'))
  vim.cmd("s/$/;/")
  vim.cmd("silent write")
  until_holds("no error", function()
    return not has_finding('expected a ";"')()
  end)
  seen.code = {}
  for index, about in ipairs({ { "out\\[at\\]", "clamp_readings" }, { "sums\\[blockIdx", "sum_readings" } }) do
    vim.fn.search(about[1], "w")
    if index == 1 then
      vim.cmd("LspKernelPtx sm_90")
    else
      vim.api.nvim_exec_autocmds("CursorMoved", { buffer = 0 })
    end
    until_holds("the PTX of " .. about[2], function()
      local view = require("kernel_lsp.machine_code").views.ptx
      return view ~= nil and table.concat(vim.api.nvim_buf_get_lines(view.buffer, 0, -1, false), "\n"):find("entry [^\n]*" .. about[2]) ~= nil
    end)
  end
  vim.cmd("only")
  act("void clamp_readings", "Add a launch plan")
  until_holds("a launch plan", function()
    return steps.lines():find("// launch: clamp_readings<<<", 1, true) ~= nil
  end)
  vim.cmd("silent write")
  steps.edit("extension.cu", "cuda")
  for _, pattern in ipairs({ "unchecked kernel launch", "launch on the default stream", "contiguous" }) do
    until_holds("a finding of the extension: " .. pattern, has_finding(pattern))
  end
end

steps.play(function()
  steps.start()
  parts[vim.env.PART]()
end)
