-- The whole way of a user through the plugin's commands, in headless Neovim.
local steps = dofile(vim.env.STEPS)
local seen, until_holds, text_of, runs = steps.seen, steps.until_holds, steps.text_of, steps.runs

local function follow_progress()
  local version = vim.version()
  seen.version = string.format("%d.%d.%d", version.major, version.minor, version.patch)
  seen.has_progress = vim.fn.exists("##LspProgress") == 1
  if not seen.has_progress then
    return
  end
  local titles, kinds = {}, {}
  vim.api.nvim_create_autocmd("LspProgress", {
    callback = function(event)
      local value = event.data.params.value
      kinds[value.kind] = true
      titles[value.title or ""] = true
      seen.progress, seen.progress_kinds = vim.tbl_keys(titles), vim.tbl_keys(kinds)
    end,
  })
end

local function session()
  local jobs = require("kernel_lsp.jobs")
  local review = require("kernel_lsp.review")
  local kernel = vim.fn.fnamemodify(vim.env.FILE, ":h") .. "/kernels/scale.cu"
  steps.start()
  follow_progress()
  steps.edit(vim.env.FILE, "python")
  seen.commands = vim.tbl_keys(vim.api.nvim_get_commands({}))
  local get = vim.diagnostic.get
  until_holds("diagnostics", function()
    return #get(0) > 0
  end)
  seen.diagnostics = vim.tbl_map(function(each)
    return each.code
  end, get(0))
  seen.root = require("kernel_lsp").clients()[1].config.root_dir

  vim.cmd("LspKernelUseNow")
  vim.api.nvim_win_set_cursor(0, { tonumber(vim.env.SCALE_LINE), 0 })
  vim.cmd("LspKernelOptimize")
  until_holds("a job", function()
    return #runs() == 1
  end)
  seen.status = {}
  until_holds("a review", function()
    local status = require("kernel_lsp").status()
    if status ~= "" then
      seen.status[status] = true
    end
    return review.open ~= nil and review.open.tabs ~= nil
  end)
  seen.status = vim.tbl_keys(seen.status)
  seen.label = review.open.label
  seen.files = vim.tbl_map(function(tab)
    local window = vim.api.nvim_tabpage_list_wins(tab)[1]
    return vim.fn.fnamemodify(vim.api.nvim_buf_get_name(vim.api.nvim_win_get_buf(window)), ":t")
  end, vim.api.nvim_list_tabpages())
  seen.is_diff = vim.wo.diff
  seen.before_apply = text_of(kernel)
  vim.cmd("LspKernelApply") -- the advice is to measure first
  seen.after_refusal = text_of(kernel)
  vim.cmd("LspKernelApply!")
  seen.after_apply = text_of(kernel)
  seen.shown = vim.api.nvim_buf_get_name(0)
  vim.cmd("silent undo")
  seen.after_undo = steps.lines()
  vim.cmd("silent redo")
  vim.cmd("edit " .. vim.env.FILE)

  vim.cmd("LspKernelShow")
  until_holds("the kernel", function()
    return vim.api.nvim_buf_get_name(0):match("scale%.cu$") ~= nil
  end)
  vim.cmd("edit " .. vim.env.FILE)
  vim.cmd("LspKernelReport")
  until_holds("the report", function()
    return vim.api.nvim_buf_get_name(0):match("report%.md$") ~= nil
  end)
  seen.report = steps.lines()

  vim.cmd("edit " .. vim.env.KERNEL)
  vim.cmd("set filetype=cuda")
  local code = require("kernel_lsp.machine_code")
  local function marked_after(line)
    vim.api.nvim_win_set_cursor(0, { line, 0 })
    vim.api.nvim_exec_autocmds("CursorMoved", { buffer = 0 })
    local function marks()
      local buffer = code.views.ptx.buffer
      local all = vim.api.nvim_get_namespaces()
      return vim.api.nvim_buf_get_extmarks(buffer, all.kernel_lsp_machine_code, 0, -1, {})
    end
    until_holds("the code of line " .. line, function()
      local result = code.views.ptx.result
      return result ~= nil and result.firstLine < line and line <= result.lastLine + 1 and #marks() > 0
    end)
    return vim.api.nvim_buf_get_lines(code.views.ptx.buffer, marks()[1][2], marks()[#marks()][2] + 1, false)
  end
  vim.cmd("LspKernelPtx sm_80")
  seen.code = { marked_after(2), marked_after(5) }
  vim.cmd("only")

  vim.cmd("edit " .. vim.env.FILE)
  vim.cmd("LspKernelOptimize scale")
  until_holds("a second job", function()
    return #runs() == 1
  end)
  local id = runs()[1].job
  vim.api.nvim_create_autocmd("User", {
    pattern = "KernelLspJob",
    callback = function()
      seen.cancelled = jobs.last.job == id and jobs.last.state or seen.cancelled
    end,
  })
  vim.cmd("LspKernelCancel")
  until_holds("its end", function()
    return #jobs.list() == 0
  end)
  vim.cmd("LspKernelCancel")
  vim.cmd("checkhealth kernel_lsp")
  seen.health = steps.lines()
  vim.cmd("helptags " .. vim.env.PLUGIN .. "/doc")
  local fine, problem = pcall(vim.cmd, "help :LspKernelOptimize")
  seen.help = fine and vim.api.nvim_get_current_line():match("LspKernelOptimize") or problem
end

steps.play(session)
