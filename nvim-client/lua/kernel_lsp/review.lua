-- A result is looked at before a file changes: a tab with the difference of each file, then `:LspKernelApply` or
-- `:LspKernelDiscard`. What was applied can be undone in its buffers, like any other change.
local M = { open = nil }

local UNDER_REVIEW = "it is shown for review"

--- Handles `workspace/applyEdit`. An edit that wants confirmation is answered with no, and kept until the user decides.
function M.on_apply_edit(_, params, context)
  local label, advice = M._confirmation(params.edit)
  local client = vim.lsp.get_client_by_id(context.client_id)
  if label == nil then
    local clean = M._clean_buffers()
    vim.lsp.util.apply_workspace_edit(params.edit, client.offset_encoding)
    M._save_changed(clean)
    return { applied = true }
  end
  M.begin({ label = label, advice = advice, edit = params.edit, encoding = client.offset_encoding or "utf-16" })
  return { applied = false, failureReason = UNDER_REVIEW }
end

--- Show a result. Another one that is under review is discarded.
function M.begin(review)
  M.discard()
  review.files = M._files(review.edit, review.encoding)
  M.open = review
  vim.schedule(function()
    M._show(review)
  end)
end

--- Make the change, if the files are as they were seen. Returns whether it was made. `anyway` is needed where times do
--- not recommend the kernel.
function M.apply(anyway)
  local review = M.open
  if review == nil then
    vim.notify("kernel-lsp: no result is under review", vim.log.levels.WARN)
    return false
  end
  if review.advice ~= nil and not anyway then
    vim.notify("kernel-lsp: " .. review.advice .. "; :LspKernelApply! applies the kernel anyway", vim.log.levels.WARN)
    return false
  end
  for _, file in ipairs(review.files) do
    if M._text(file.path) ~= file.before then
      local message = "kernel-lsp: not applied, since " .. file.path .. " has changed meanwhile"
      vim.notify(message, vim.log.levels.WARN)
      return false
    end
  end
  M._close(review)
  for _, file in ipairs(review.files) do
    M._write(file)
  end
  vim.cmd("edit " .. vim.fn.fnameescape(review.files[1].path))
  return true
end

--- Change nothing.
function M.discard()
  if M.open ~= nil then
    M._close(M.open)
  end
end

-- --- below

--- The buffers of files that are as they are on disk.
function M._clean_buffers()
  return vim.tbl_filter(function(buffer)
    return vim.api.nvim_buf_is_loaded(buffer) and vim.bo[buffer].buftype == "" and not vim.bo[buffer].modified
  end, vim.api.nvim_list_bufs())
end

--- Save what an edit that the user chose has changed: the run after it reads the file from disk.
function M._save_changed(buffers)
  for _, buffer in ipairs(buffers) do
    if vim.api.nvim_buf_is_valid(buffer) and vim.bo[buffer].modified and vim.api.nvim_buf_get_name(buffer) ~= "" then
      vim.api.nvim_buf_call(buffer, function()
        vim.cmd("silent write")
      end)
    end
  end
end

function M._confirmation(edit)
  for _, annotation in pairs(edit.changeAnnotations or {}) do
    if annotation.needsConfirmation then
      local description = annotation.description or ""
      return annotation.label, description:match("; (keep PyTorch)$") or description:match("; (measure first)$")
    end
  end
  return nil
end

--- Into its buffer, so that it can be undone, and to the disk, byte by byte as it was reviewed.
function M._write(file)
  vim.fn.mkdir(vim.fn.fnamemodify(file.path, ":h"), "p")
  local buffer = vim.fn.bufadd(file.path)
  vim.fn.bufload(buffer)
  local ends = file.after:sub(-1) == "\n"
  local text = ends and file.after:sub(1, -2) or file.after
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, vim.split(text, "\n", { plain = true }))
  vim.bo[buffer].buflisted = true
  vim.bo[buffer].fixendofline = false
  vim.bo[buffer].endofline = ends
  vim.api.nvim_buf_call(buffer, function()
    vim.cmd("silent write!")
  end)
end

--- Each file with its text before and after; edits are made in a buffer of their own.
function M._files(edit, encoding)
  local files = {}
  for _, change in ipairs(edit.documentChanges) do
    if change.edits ~= nil then
      local path = vim.uri_to_fname(change.textDocument.uri)
      local before = M._text(path)
      table.insert(files, { path = path, before = before, after = M._edited(before, change.edits, encoding) })
    end
  end
  return files
end

function M._edited(before, edits, encoding)
  local buffer = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, vim.split(before, "\n", { plain = true }))
  vim.lsp.util.apply_text_edits(vim.tbl_map(M._plain, edits), buffer, encoding)
  local after = table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, false), "\n")
  vim.api.nvim_buf_delete(buffer, { force = true })
  return after
end

--- Without its annotation: the user confirms the result as a whole, and Neovim 0.12 wants the annotations beside it.
function M._plain(edit)
  return { range = edit.range, newText = edit.newText }
end

--- Of the buffer where there is one, else of the file; empty when there is neither.
function M._text(path)
  local buffer = vim.fn.bufnr(vim.fn.escape(path, "[]*?{}"))
  if buffer > 0 and vim.api.nvim_buf_is_loaded(buffer) then
    return table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, false), "\n") .. "\n"
  end
  local file = io.open(path, "rb")
  if file == nil then
    return ""
  end
  local text = file:read("*a")
  file:close()
  return text
end

function M._show(review)
  review.tabs = {}
  for _, file in ipairs(review.files) do
    vim.cmd("tabnew")
    table.insert(review.tabs, vim.api.nvim_get_current_tabpage())
    M._side(file, "before")
    vim.cmd("rightbelow vsplit")
    M._side(file, "after")
  end
  vim.api.nvim_set_current_tabpage(review.tabs[1])
  local apply = review.advice and ":LspKernelApply!" or ":LspKernelApply"
  vim.notify(review.label .. "\n" .. apply .. " makes the change, :LspKernelDiscard does not.")
  vim.api.nvim_exec_autocmds("User", { pattern = "KernelLspReview", modeline = false })
end

function M._side(file, side)
  local buffer = vim.api.nvim_create_buf(false, true)
  vim.api.nvim_win_set_buf(0, buffer)
  vim.api.nvim_buf_set_lines(buffer, 0, -1, false, vim.split(file[side], "\n", { plain = true }))
  vim.bo[buffer].bufhidden = "wipe"
  vim.bo[buffer].modifiable = false
  local name = "kernel-lsp://" .. side .. "/" .. buffer .. "/" .. vim.fn.fnamemodify(file.path, ":t")
  vim.api.nvim_buf_set_name(buffer, name)
  vim.bo[buffer].syntax = file.path:match("%.py$") and "python" or "cuda"
  vim.cmd("diffthis")
end

function M._close(review)
  M.open = nil
  for _, tab in ipairs(review.tabs or {}) do
    if vim.api.nvim_tabpage_is_valid(tab) then
      vim.cmd("tabclose " .. vim.api.nvim_tabpage_get_number(tab))
    end
  end
end

return M
