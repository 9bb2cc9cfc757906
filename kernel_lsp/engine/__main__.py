"""``python -m kernel_lsp.engine``"""

from kernel_lsp.engine.program import main

if __name__ == "__main__":
    main()
