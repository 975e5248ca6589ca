# For a tap of your own. A release fills in url and sha256; until then: brew install --HEAD.
class StepSequencer < Formula
  include Language::Python::Virtualenv

  desc "Runs agent steps in the order that a workflow decides"
  homepage "https://pypi.org/project/step-sequencer/"
  license "MIT"
  head ENV.fetch("HOMEBREW_SEQUENCER_GIT", "https://example.org/sequencer.git"), branch: "main"

  depends_on "python@3.13"

  def install
    venv = virtualenv_create(libexec, "python3.13")
    # With its dependencies from PyPI, which a tap may use and homebrew-core may not.
    system venv.root/"bin/python", "-m", "pip", "install", "#{buildpath}[web,mcp]"
    bin.install_symlink venv.root/"bin/sequencer"
    man1.install_symlink venv.root/"share/man/man1/sequencer.1"
    bash_completion.install_symlink venv.root/"share/bash-completion/completions/sequencer"
    zsh_completion.install_symlink venv.root/"share/zsh/site-functions/_sequencer"
    fish_completion.install_symlink venv.root/"share/fish/vendor_completions.d/sequencer.fish"
  end

  test do
    assert_match "sequencer", shell_output("#{bin}/sequencer --version")
    system bin/"sequencer", "demo", "--help"
  end
end
