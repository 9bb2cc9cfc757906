"""Build torch extensions: headers, bindings, symbols, cached objects.

In: the sources of an extension and an interpreter with torch. Out: a library, from cached objects where possible, or
the compiler's findings. Never: an import of the library.
"""
