import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A coordinator for tests: `kcoord serve` as a process, on free ports, which is asked over HTTP. */
final class Kcoord implements AutoCloseable {
    private static final Pattern READY = Pattern.compile("kcoord serves on ([^, ]+),.* control at (http://[^/]+)/.*");

    /** For `bootstrap.servers`. */
    final String address;

    private final String token = UUID.randomUUID().toString();
    private final HttpClient http = HttpClient.newHttpClient();
    private final Process process;
    private final String control;

    /** Starts it; the environment variable KCOORD has the command if it is not `kcoord`. */
    Kcoord(String... options) throws IOException {
        String program = System.getenv().getOrDefault("KCOORD", "kcoord");
        List<String> command = new ArrayList<>(List.of(program.split(" ")));
        command.addAll(List.of("serve", "--port", "0", "--control", "0"));
        command.addAll(List.of("--config", "group.initial.rebalance.delay.ms=0"));
        command.addAll(List.of(options));
        ProcessBuilder builder = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD);
        builder.environment().put("KCOORD_CONTROL_TOKEN", token);
        process = builder.start();
        String line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        Matcher found = READY.matcher(line == null ? "" : line);
        if (!found.matches()) {
            process.destroy();
            throw new IOException("kcoord has not started: " + line);
        }
        address = found.group(1);
        control = found.group(2);
    }

    /** Asks for something, as in `get("/groups/billing")`; gives JSON. */
    String get(String path) throws IOException, InterruptedException {
        return send(request(path).GET());
    }

    /** Has it do something, as in `post("/groups/billing/rebalance", "{}")`; gives JSON. */
    String post(String path, String json) throws IOException, InterruptedException {
        return send(request(path).POST(HttpRequest.BodyPublishers.ofString(json)));
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(control + path))
                .header("Authorization", "Bearer " + token)
                .header("Content-Type", "application/json");
    }

    private String send(HttpRequest.Builder request) throws IOException, InterruptedException {
        HttpResponse<String> response = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (response.statusCode() >= 400) {
            throw new IOException(response.body());
        }
        return response.body();
    }

    /** Ends it, and waits for that. */
    @Override
    public void close() throws InterruptedException {
        process.destroy();
        process.waitFor();
    }
}
