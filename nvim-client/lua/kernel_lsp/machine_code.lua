-- PTX and SASS of the function at the cursor, in a split that follows it.
local M = {}

local marks = vim.api.nvim_create_namespace("kernel_lsp_machine_code")
local FOLLOW_MS = 200

--- The open views by form: { buffer, source, tick, architecture, result }.
M.views = {}

--- Open the split of a form for the kernel in this buffer. `ask` sends a request for a buffer.
function M.open(form, architecture, ask)
  local source = vim.api.nvim_get_current_buf()
  local view = M.views[form] or {}
  M.views[form] = view
  view.form, view.source, view.architecture, view.ask, view.result = form, source, architecture, ask, nil
  if view.buffer == nil or not vim.api.nvim_buf_is_valid(view.buffer) then
    view.buffer = M._buffer(form)
  end
  if vim.fn.bufwinid(view.buffer) == -1 then
    local window = vim.api.nvim_get_current_win()
    vim.cmd("rightbelow vsplit")
    vim.api.nvim_win_set_buf(0, view.buffer)
    vim.api.nvim_set_current_win(window)
  end
  M._follow_cursor()
  M._update(view)
end

-- --- below

function M._buffer(form)
  local buffer = vim.api.nvim_create_buf(false, true)
  vim.bo[buffer].bufhidden = "wipe"
  vim.bo[buffer].modifiable = false
  vim.bo[buffer].syntax = "asm"
  vim.api.nvim_buf_set_name(buffer, "kernel-lsp://" .. buffer .. "/function." .. form)
  return buffer
end

function M._follow_cursor()
  local group = vim.api.nvim_create_augroup("kernel_lsp_machine_code", { clear = true })
  vim.api.nvim_create_autocmd({ "CursorMoved", "CursorMovedI", "TextChanged", "InsertLeave" }, {
    group = group,
    callback = function(event)
      for form, view in pairs(M.views) do
        if not vim.api.nvim_buf_is_valid(view.buffer) then
          M.views[form] = nil
        elseif event.buf == view.source then
          M._mark(view)
          M._later(view)
        end
      end
      if next(M.views) == nil then
        vim.api.nvim_del_augroup_by_id(group)
      end
    end,
  })
end

--- Ask once the cursor rests, if the answer that is there is for another function or text.
function M._later(view)
  view.number = (view.number or 0) + 1
  local number = view.number
  vim.defer_fn(function()
    if number == view.number and vim.api.nvim_buf_is_valid(view.buffer) and not M._is_current(view) then
      M._update(view)
    end
  end, FOLLOW_MS)
end

function M._line(view)
  local window = vim.fn.bufwinid(view.source)
  return window ~= -1 and vim.api.nvim_win_get_cursor(window)[1] - 1 or 0
end

function M._is_current(view)
  local line, result = M._line(view), view.result
  return result ~= nil
    and view.tick == vim.api.nvim_buf_get_changedtick(view.source)
    and result.firstLine <= line
    and line <= result.lastLine
end

function M._update(view)
  local params = { uri = vim.uri_from_bufnr(view.source), line = M._line(view), form = view.form }
  params.architecture = view.architecture
  local tick = vim.api.nvim_buf_get_changedtick(view.source)
  view.ask(params, function(result)
    local is_between = view.result ~= nil and result.firstLine < 0 and #result.architectures > 0
    if is_between or not vim.api.nvim_buf_is_valid(view.buffer) then
      return
    end
    view.result, view.tick = result, tick
    local text = result.text ~= "" and result.text or "// " .. result.problem:gsub("\n", "\n// ")
    vim.bo[view.buffer].modifiable = true
    vim.api.nvim_buf_set_lines(view.buffer, 0, -1, false, vim.split(text, "\n", { plain = true }))
    vim.bo[view.buffer].modifiable = false
    M._mark(view)
    vim.api.nvim_exec_autocmds("User", { pattern = "KernelLspCode", modeline = false })
  end)
end

--- Highlight the code of the cursor's line, and scroll to it.
function M._mark(view)
  vim.api.nvim_buf_clear_namespace(view.buffer, marks, 0, -1)
  local line, first = M._line(view), nil
  for index, source in ipairs(view.result and view.result.lines or {}) do
    if source == line and index <= vim.api.nvim_buf_line_count(view.buffer) then
      first = first or index
      vim.api.nvim_buf_set_extmark(view.buffer, marks, index - 1, 0, { line_hl_group = "Visual" })
    end
  end
  local window = vim.fn.bufwinid(view.buffer)
  if first ~= nil and window ~= -1 then
    vim.api.nvim_win_set_cursor(window, { first, 0 })
  end
end

return M
