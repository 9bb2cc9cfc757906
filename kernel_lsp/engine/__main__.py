"""``python -m kernel_lsp.engine``"""

from kernel_lsp.engine.engine_loop import main

if __name__ == "__main__":
    main()
