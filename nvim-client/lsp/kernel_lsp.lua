-- Neovim 0.11 and newer: `vim.lsp.enable("kernel_lsp")` finds this file on the runtime path.
return require("kernel_lsp.config").client_config({})
