-- Documents that the server wants shown: Neovim answers this request itself since 0.10, and older ones do not.
local M = {}

function M.document(params)
  if params.external then
    return { success = false }
  end
  -- A buffer with changes is not left where 'hidden' is off: then nothing is shown.
  local shown = pcall(vim.cmd, "edit " .. vim.fn.fnameescape(vim.uri_to_fname(params.uri)))
  if shown and params.selection ~= nil then
    pcall(vim.api.nvim_win_set_cursor, 0, { params.selection.start.line + 1, params.selection.start.character })
  end
  return { success = shown }
end

--- Type a shell command into the command line, for the user to change and run.
function M.command(line)
  local text = ":terminal cd " .. vim.fn.shellescape(line.folder) .. " && " .. line.command
  vim.api.nvim_feedkeys(text, "n", false)
end

return M
