-- Documents that the server wants shown: Neovim answers this request itself since 0.10, and older ones do not.
local M = {}

function M.document(params)
  if params.external then
    return { success = false }
  end
  -- A buffer with changes is not left where 'hidden' is off: then nothing is shown.
  local shown = pcall(vim.cmd, "edit " .. vim.fn.fnameescape(vim.uri_to_fname(params.uri)))
  return { success = shown }
end

return M
