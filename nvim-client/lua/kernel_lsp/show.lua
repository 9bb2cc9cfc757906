-- Documents that the server wants shown. Neovim answers this request itself since 0.10.
local M = {}

function M.document(params)
  if params.external then
    return { success = false }
  end
  vim.cmd("edit " .. vim.fn.fnameescape(vim.uri_to_fname(params.uri)))
  return { success = true }
end

return M
