"""Read PTX: parser, syntax, control flow, loops, data flow, inlining. Text in, frozen data out."""
