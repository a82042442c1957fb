// Runs Jenkinsfiles without Jenkins: jenkinsfile.groovy FILE...
// Knows the sections and steps of the declarative syntax that examples/ci uses, and no others. The
// shell step ends with 0, with 75 and with 7. Prints the build's result for each, then the script of
// the shell step; or why a file is rejected.

class Sections {
    static void within(Object delegate, Closure body) {
        body.delegate = delegate
        body.resolveStrategy = Closure.DELEGATE_ONLY
        body.call()
    }
}

/** What an error step throws. */
class Failed extends RuntimeException {}

class Build {
    int code
    String result = 'SUCCESS'
    String script

    void run(Closure body) {
        try {
            Sections.within(new Pipeline(build: this), body)
        } catch (Failed ignored) {
            result = 'FAILURE'
        }
    }
}

class Pipeline {
    Build build

    void agent(Closure body) { Sections.within(new Agent(), body) }

    void options(Closure body) { Sections.within(new Options(), body) }

    void environment(Closure body) { Sections.within(new Environment(), body) }

    void stages(Closure body) { Sections.within(new Stages(build: build), body) }
}

class Agent {
    void label(String label) {}
}

class Options {
    void timeout(Map limit) {
        assert limit.keySet() == ['time', 'unit'] as Set && limit.time instanceof Integer
        java.util.concurrent.TimeUnit.valueOf(limit.unit)
    }
}

class Environment {
    void setProperty(String name, Object value) {
        assert name ==~ /[A-Z_]+/ && value instanceof String
    }

    String credentials(String id) { id }
}

class Stages {
    Build build

    void stage(String name, Closure body) { Sections.within(new Stage(build: build), body) }
}

class Stage {
    Build build

    void steps(Closure body) { Sections.within(new Steps(build: build), body) }
}

class Steps {
    Build build

    void script(Closure body) { Sections.within(this, body) }

    int sh(Map step) {
        assert step.keySet() == ['returnStatus', 'script'] as Set && step.returnStatus == true
        build.script = step.script
        build.code
    }

    void unstable(String message) { build.result = 'UNSTABLE' }

    void error(String message) { throw new Failed() }
}

for (name in args) {
    def builds = [0, 75, 7].collect { new Build(code: it) }
    try {
        for (build in builds) {
            def pipeline = { Closure body -> build.run(body) }
            new GroovyShell(new Binding(pipeline: pipeline)).evaluate(new File(name))
        }
        println builds*.result.join(' ')
        print builds[0].script
    } catch (GroovyRuntimeException | AssertionError error) {
        println "rejected: ${error.message.readLines()[0]}"
    }
}
