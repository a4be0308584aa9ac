SELECT document, version, author, changed_at FROM headgate.notifications
