if vim.g.loaded_kernel_lsp == nil then
  vim.g.loaded_kernel_lsp = true
  require("kernel_lsp.commands").define()
end
