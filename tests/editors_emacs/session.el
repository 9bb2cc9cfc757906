;; Eglot in batch Emacs: diagnostics, a code action, and an applied quick fix. What was seen goes to $SEEN as JSON.
(require 'package)
(package-initialize)
(require 'eglot)
(require 'json)

(defvar kernel-lsp-seen nil "What was seen, as an alist.")
(defvar kernel-lsp-deadline-s (string-to-number (getenv "DEADLINE_S")))

(defun kernel-lsp-see (name value)
  (push (cons name value) kernel-lsp-seen))

(defun kernel-lsp-until (what holds)
  "Wait until the function HOLDS gives something, and return it; else fail with WHAT."
  (let ((end (+ (float-time) kernel-lsp-deadline-s)) found)
    (while (and (not (setq found (funcall holds))) (< (float-time) end))
      (accept-process-output nil 0.1))
    (or found (error "not in time: %s" what))))

(defun kernel-lsp-actions ()
  "The code actions at the line that the finding is on."
  (append (jsonrpc-request (eglot--current-server-or-lose) :textDocument/codeAction
                           (list :textDocument (eglot--TextDocumentIdentifier)
                                 :range (list :start (eglot--pos-to-lsp-position
                                                      (save-excursion (goto-char (point-max)) (forward-line -1) (point)))
                                              :end (eglot--pos-to-lsp-position (point-max)))
                                 :context (list :diagnostics []))
                           :timeout kernel-lsp-deadline-s)
          nil))

(defun kernel-lsp-session ()
  (setq eglot-sync-connect kernel-lsp-deadline-s eglot-connect-timeout kernel-lsp-deadline-s eglot-confirm-server-initiated-edits nil)
  (add-to-list 'eglot-server-programs
               (list 'python-mode (getenv "PYTHON") "-m" "kernel_lsp" "serve"))
  (find-file (getenv "FILE"))
  (python-mode)
  (apply #'eglot (eglot--guess-contact))
  (kernel-lsp-see 'server (plist-get (eglot--server-info (eglot--current-server-or-lose)) :name))
  (flymake-mode 1)
  (flymake-start)
  (kernel-lsp-until "diagnostics" #'flymake-diagnostics)
  (kernel-lsp-see 'diagnostics (mapcar #'flymake-diagnostic-text (flymake-diagnostics)))
  (let ((actions (kernel-lsp-until "actions" #'kernel-lsp-actions)))
    (kernel-lsp-see 'actions (mapcar (lambda (each) (plist-get each :title)) actions))
    (let ((fix (seq-find (lambda (each) (plist-get each :edit)) actions)))
      (kernel-lsp-see 'fix (plist-get fix :title))
      (eglot--apply-workspace-edit (plist-get fix :edit))))
  (kernel-lsp-see 'text (buffer-string)))

(condition-case problem
    (kernel-lsp-session)
  (error (kernel-lsp-see 'problem (error-message-string problem))))
(with-temp-file (getenv "SEEN")
  (insert (json-encode kernel-lsp-seen)))
(ignore-errors (eglot-shutdown-all))
(kill-emacs)
