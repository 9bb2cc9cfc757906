-- kernel-lsp in Neovim: `require("kernel_lsp").setup()` is all that is needed, on 0.7 and on everything since.
local config = require("kernel_lsp.config")

local M = {}

--- Start the server for every Python and CUDA file.
---@param options? kernel_lsp.Options
function M.setup(options)
  local client_config = config.client_config(options or {})
  if vim.lsp.enable ~= nil then
    vim.lsp.config("kernel_lsp", client_config)
    vim.lsp.enable("kernel_lsp")
    return
  end
  local group = vim.api.nvim_create_augroup("kernel_lsp", { clear = true })
  vim.api.nvim_create_autocmd("FileType", {
    group = group,
    pattern = config.filetypes,
    callback = function(event)
      M._start(client_config, event.buf)
    end,
  })
end

--- For a statusline: what is going on, e.g. `Optimize RMSNorm 42% generation 2/4`; empty when nothing is.
function M.status()
  return require("kernel_lsp.jobs").status()
end

--- The running clients of this server, newest last.
function M.clients()
  local all = (vim.lsp.get_clients or vim.lsp.get_active_clients)()
  return vim.tbl_filter(function(client)
    return client.name == "kernel_lsp"
  end, all)
end

-- --- below

local client_of_root = {}

--- One client for each root, as `vim.lsp.start` has it since 0.8.
function M._start(client_config, buffer)
  local path = vim.api.nvim_buf_get_name(buffer)
  if path == "" or vim.bo[buffer].buftype ~= "" then
    return
  end
  local root = config.root_of(path)
  local given = vim.tbl_extend("force", client_config, {
    root_dir = root,
    workspace_folders = { { uri = vim.uri_from_fname(root), name = root } },
  })
  if vim.lsp.start ~= nil then
    vim.lsp.start(given, { bufnr = buffer })
    return
  end
  local known = client_of_root[root] and vim.lsp.get_client_by_id(client_of_root[root])
  local id = known and not known.is_stopped() and known.id or vim.lsp.start_client(given)
  client_of_root[root] = id
  if id ~= nil then
    vim.lsp.buf_attach_client(buffer, id)
  end
end

return M
